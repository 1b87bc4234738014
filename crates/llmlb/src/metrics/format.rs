//! Format of the page, negotiated by the header `Accept` as Prometheus does.

/// Format of the page `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus text format 0.0.4, also for browsers and `curl`.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that the client prefers. Prometheus text unless OpenMetrics is named and preferred.
    pub(crate) fn negotiate(accept: &str) -> Self {
        let quality_of = |wanted: &str| {
            let offers = accept.split(',').filter_map(|offer| {
                let mut parts = offer.split(';').map(str::trim);
                let name = parts.next()?;
                let is_same = name.eq_ignore_ascii_case(wanted);
                is_same.then(|| quality(parts)).flatten()
            });
            offers.fold(None, |best: Option<f32>, one| {
                Some(best.map_or(one, |best| best.max(one)))
            })
        };
        let open = quality_of("application/openmetrics-text").unwrap_or(0.0);
        let text = quality_of("text/plain").unwrap_or(0.0);
        if open > 0.0 && open >= text {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Returns the quality of an offer with these parameters; `None` for a version that is not served.
fn quality<'a>(parameters: impl Iterator<Item = &'a str>) -> Option<f32> {
    let mut quality = 1.0;
    for parameter in parameters {
        let Some((name, value)) = parameter.split_once('=') else {
            continue;
        };
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => quality = value.parse().unwrap_or(0.0),
            "version" if !matches!(value, "1.0.0" | "0.0.1" | "0.0.4") => return None,
            _ => {}
        }
    }
    Some(quality)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_the_one_that_the_client_prefers() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                          version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/html,*/*;q=0.8", Format::Prometheus),
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text ; version=1.0.0",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text;q=0.3,text/plain",
                Format::Prometheus,
            ),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            (
                "application/openmetrics-text;version=2.0.0",
                Format::Prometheus,
            ),
            ("application/openmetrics-text;q=x", Format::Prometheus),
        ] {
            assert_eq!(Format::negotiate(accept), format, "{accept}");
        }
    }
}
