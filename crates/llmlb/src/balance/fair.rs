//! The order of those who wait. Pure: no clock, no tasks.
//!
//! Clients take turns: each that waits has a turn, and whoever is served goes to the end. A client
//! with a thousand requests so holds up another's single one by no more than one of its own.
//! Within a client, and within what it waits for, the first to come is the first to go.
//!
//! Requests that wait for the same thing stand in one lane, so that a place which became free is
//! offered to lanes, of which there are few, and not to everyone who waits.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// A waiter's number: they are given in the order of coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Who waits: `L` is what for, `W` is what each leaves behind to be called by.
#[derive(Debug)]
pub(super) struct Fair<L, W> {
    lanes: Vec<Lane<L, W>>,
    clients: HashMap<u64, Client>,
    /// The last turn, and the last ticket, that was given.
    turns: u64,
    tickets: u64,
    waiting: usize,
    most: usize,
}

#[derive(Debug)]
struct Lane<L, W> {
    lane: L,
    /// By their clients' turns; none of the queues is empty.
    lines: BTreeMap<u64, Line<W>>,
}

/// Those of one client in one lane.
#[derive(Debug)]
struct Line<W> {
    client: u64,
    queue: VecDeque<(Ticket, W)>,
}

#[derive(Debug)]
struct Client {
    turn: u64,
    /// How many of its requests wait, in all lanes.
    waiting: usize,
}

impl<L, W> Fair<L, W> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            lanes: Vec::new(),
            clients: HashMap::new(),
            turns: 0,
            tickets: 0,
            waiting: 0,
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Stands in the lane for this, or opens one. `None`: too many wait already.
    pub(super) fn join(&mut self, lane: L, client: u64, waiter: W) -> Option<Ticket>
    where
        L: PartialEq,
    {
        if self.waiting >= self.most {
            return None;
        }
        let open = self.lanes.iter().position(|one| one.lane == lane);
        let lane = open.unwrap_or_else(|| {
            let lines = BTreeMap::new();
            self.lanes.push(Lane { lane, lines });
            self.lanes.len() - 1
        });
        let turns = &mut self.turns;
        let found = self.clients.entry(client).or_insert_with(|| {
            *turns += 1;
            Client {
                turn: *turns,
                waiting: 0,
            }
        });
        found.waiting += 1;
        self.waiting += 1;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let lines = &mut self.lanes[lane].lines;
        let line = lines.entry(found.turn).or_insert_with(|| Line {
            client,
            queue: VecDeque::new(),
        });
        line.queue.push_back((ticket, waiter));
        Some(ticket)
    }

    /// Goes away without having been served. `None`: it was called already.
    pub(super) fn leave(&mut self, client: u64, ticket: Ticket) -> Option<W> {
        let turn = self.clients.get(&client)?.turn;
        let place = |lane: &Lane<L, W>| {
            let queue = &lane.lines.get(&turn)?.queue;
            queue.binary_search_by_key(&ticket, |(one, _)| *one).ok()
        };
        let mut lanes = self.lanes.iter().enumerate();
        let (lane, at) = lanes.find_map(|(index, lane)| Some((index, place(lane)?)))?;
        let lines = &mut self.lanes[lane].lines;
        let line = lines.get_mut(&turn)?;
        let (_, waiter) = line.queue.remove(at)?;
        if line.queue.is_empty() {
            lines.remove(&turn);
        }
        self.forget_lane_if_empty(lane);
        self.discount(client, 1);
        Some(waiter)
    }

    /// The lane whose first waiter is the next in turn, of those lanes that `may` be served.
    pub(super) fn next(&self, may: impl Fn(&L) -> bool) -> Option<usize> {
        let heads = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
            let (turn, line) = lane.lines.first_key_value()?;
            // The same client may be next in several.
            let (ticket, _) = line.queue.front()?;
            may(&lane.lane).then_some(((*turn, *ticket), index))
        });
        heads.min().map(|(_, index)| index)
    }

    /// What the waiters of a lane wait for.
    pub(super) fn lane(&mut self, index: usize) -> &mut L {
        &mut self.lanes[index].lane
    }

    /// The same of all lanes.
    pub(super) fn lanes(&mut self) -> impl Iterator<Item = &mut L> {
        self.lanes.iter_mut().map(|lane| &mut lane.lane)
    }

    /// Calls the first waiter of a lane. Its client goes to the end.
    pub(super) fn call(&mut self, index: usize) -> Option<W> {
        let mut first = self.lanes.get_mut(index)?.lines.first_entry()?;
        let turn = *first.key();
        let client = first.get().client;
        let (_, waiter) = first.get_mut().queue.pop_front()?;
        if first.get().queue.is_empty() {
            first.remove();
        }
        self.forget_lane_if_empty(index);
        self.discount(client, 1);
        if let Some(client) = self.clients.get_mut(&client) {
            self.turns += 1;
            client.turn = self.turns;
            for lane in &mut self.lanes {
                if let Some(line) = lane.lines.remove(&turn) {
                    lane.lines.insert(self.turns, line);
                }
            }
        }
        Some(waiter)
    }

    /// Calls everyone in a lane.
    pub(super) fn call_all(&mut self, index: usize) -> Vec<W> {
        let lines = std::mem::take(&mut self.lanes[index].lines);
        self.forget_lane_if_empty(index);
        let mut called = Vec::new();
        for line in lines.into_values() {
            self.discount(line.client, line.queue.len());
            called.extend(line.queue.into_iter().map(|(_, waiter)| waiter));
        }
        called
    }

    fn forget_lane_if_empty(&mut self, index: usize) {
        if self.lanes[index].lines.is_empty() {
            self.lanes.swap_remove(index);
        }
    }

    fn discount(&mut self, client: u64, count: usize) {
        self.waiting -= count;
        if let Some(found) = self.clients.get_mut(&client) {
            found.waiting -= count;
            if found.waiting == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes and waiters by name.
    type Names = Fair<&'static str, String>;

    fn join(fair: &mut Names, lane: &'static str, client: u64, name: &str) -> Option<Ticket> {
        fair.join(lane, client, name.to_owned())
    }

    fn call(fair: &mut Names, may: impl Fn(&&'static str) -> bool) -> String {
        match fair.next(may) {
            Some(lane) => fair.call(lane).unwrap(),
            None => "nobody".to_owned(),
        }
    }

    fn call_any(fair: &mut Names) -> String {
        call(fair, |_| true)
    }

    #[test]
    fn a_client_with_a_thousand_does_not_hold_up_anothers_one() {
        let mut fair = Names::new(2000);
        for number in 0..1000 {
            join(&mut fair, "m", 1, &format!("many {number}"));
        }
        assert_eq!(call_any(&mut fair), "many 0");
        join(&mut fair, "m", 2, "single");
        join(&mut fair, "m", 3, "other");
        let called: Vec<_> = (0..4).map(|_| call_any(&mut fair)).collect();
        assert_eq!(called, ["many 1", "single", "other", "many 2"]);
    }

    #[test]
    fn clients_take_turns_in_any_number_of_lanes() {
        let mut fair = Names::new(100);
        for round in 0..3 {
            join(&mut fair, "a", 1, &format!("1a{round}"));
            join(&mut fair, "b", 1, &format!("1b{round}"));
            join(&mut fair, "b", 2, &format!("2b{round}"));
        }
        let called: Vec<_> = (0..6)
            .map(|_| call(&mut fair, |lane| *lane == "b"))
            .collect();
        assert_eq!(called, ["1b0", "2b0", "1b1", "2b1", "1b2", "2b2"]);
        assert_eq!(call(&mut fair, |lane| *lane == "b"), "nobody");
        join(&mut fair, "a", 2, "2a");
        let called: Vec<_> = (0..4).map(|_| call_any(&mut fair)).collect();
        assert_eq!(called, ["1a0", "2a", "1a1", "1a2"]);
        assert_eq!(fair.len(), 0);
    }

    #[test]
    fn who_comes_back_after_being_served_stands_behind_who_still_waits() {
        let mut fair = Names::new(100);
        join(&mut fair, "m", 1, "first");
        join(&mut fair, "m", 2, "second");
        assert_eq!(call_any(&mut fair), "first");
        join(&mut fair, "m", 1, "first again");
        assert_eq!(call_any(&mut fair), "second");
        assert_eq!(call_any(&mut fair), "first again");
    }

    #[test]
    fn who_left_is_forgotten_and_holds_nobody_up() {
        let mut fair = Names::new(3);
        let tickets = ["x", "y", "z"].map(|name| join(&mut fair, "m", 1, name).unwrap());
        assert_eq!(join(&mut fair, "m", 2, "too many"), None);
        assert_eq!(fair.leave(1, tickets[0]), Some("x".to_owned()));
        assert_eq!(fair.leave(1, tickets[0]), None, "it has left");
        assert_eq!(fair.leave(2, tickets[1]), None, "that is not its own");
        assert!(join(&mut fair, "m", 2, "now").is_some());
        assert_eq!(call_any(&mut fair), "y");
        assert_eq!(fair.leave(1, tickets[1]), None, "it was called");
        assert_eq!(fair.leave(1, tickets[2]), Some("z".to_owned()));
        assert_eq!(call_any(&mut fair), "now");
        assert_eq!(call_any(&mut fair), "nobody");
        assert!(fair.lanes.is_empty() && fair.clients.is_empty());
    }

    #[test]
    fn a_whole_lane_can_be_called_and_the_others_stay() {
        let mut fair = Names::new(9);
        for client in 1..=2 {
            join(&mut fair, "a", client, "a1");
            join(&mut fair, "a", client, "a2");
            join(&mut fair, "b", client, &format!("b of {client}"));
        }
        let lane = fair.next(|lane| *lane == "a").unwrap();
        assert_eq!(fair.call_all(lane), ["a1", "a2", "a1", "a2"]);
        assert_eq!(fair.len(), 2);
        assert_eq!(call_any(&mut fair), "b of 1");
        assert_eq!(call_any(&mut fair), "b of 2");
        assert!(fair.lanes.is_empty() && fair.clients.is_empty());
    }
}
