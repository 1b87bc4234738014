//! Tests of the catalog and of the registry.

mod catalog;
mod registry;
