//! The order in which waiting requests are served. Pure: no clock, no tasks.
//!
//! Client addresses take turns: each address with waiting requests has a number, its turn, and the
//! lowest turn is served first. When a request of an address is served, the address gets a new,
//! highest turn. The credentials of an address take turns in the same way, and the requests of a
//! credential are served in the order of arrival. A client with a thousand requests therefore
//! delays the single request of another address by at most one of its own, however many credentials
//! it invents.
//!
//! Requests that wait for the same backends are in one lane. A slot that became free is offered to
//! the lanes, of which there are few, and not to every waiting request.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::ClientKey;

/// Number of a waiting request in the order of arrival, by which the newest request is found for an
/// eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// All waiting requests, grouped into lanes: the requests of one lane wait for the same backends.
/// `L` is the key of a lane, `W` is the handle that wakes a request.
#[derive(Debug)]
pub(super) struct FairQueue<L, W> {
    lanes: Vec<Lane<L, W>>,
    addresses: HashMap<u64, Address>,
    /// Client addresses, sorted by the number of their waiting requests. A full queue evicts a
    /// request of the address with the most.
    by_count: Ranking,
    /// Highest turn that an address or credential has got. Lower turns are served first.
    turns: u64,
    /// Ticket number of the request that joined the queue last. The next request gets a higher one.
    tickets: u64,
    waiting: usize,
    max: usize,
}

/// Requests that wait for the same backends.
#[derive(Debug)]
struct Lane<L, W> {
    /// Key of the lane, which names the backends that its requests wait for.
    lane: L,
    /// Waiting requests by the turn of their client address. The lowest turn is served first. An
    /// address without waiting requests has no entry, so the first entry always has a request.
    addresses: BTreeMap<u64, AddressLine<W>>,
}

/// The waiting requests of one client address in one lane, the group of requests that wait for the
/// same backends.
#[derive(Debug)]
struct AddressLine<W> {
    address: u64,
    /// Waiting requests by the turn of their credential. The lowest turn is served first. A
    /// credential without waiting requests has no entry, so the first entry always has a request.
    credentials: BTreeMap<u64, CredentialLine<W>>,
}

/// The waiting requests of one credential in one lane (the requests that wait for the same
/// backends), in the order of arrival.
#[derive(Debug)]
struct CredentialLine<W> {
    credential: u64,
    queue: VecDeque<(Ticket, W)>,
}

/// State of a client address while it has waiting requests: its turn to be served, and the requests
/// that a full queue may evict.
#[derive(Debug, Default)]
struct Address {
    turn: u64,
    credentials: HashMap<u64, Credential>,
    tickets: Tickets,
    /// Credentials of the address, sorted by the number of their waiting requests. An eviction
    /// removes a request of the credential with the most.
    by_count: Ranking,
}

/// State of a credential while it has waiting requests: its turn to be served, and the requests
/// that a full queue may evict.
#[derive(Debug)]
struct Credential {
    turn: u64,
    tickets: Tickets,
}

/// Ticket numbers of the waiting requests of one address or credential, sorted by arrival. A full
/// queue evicts the last one, which is the newest request.
#[derive(Debug, Default)]
struct Tickets(BTreeSet<Ticket>);

/// Addresses or credentials, sorted by the number of their waiting requests, then by the newest of these
/// requests. The last entry has the most requests; among equals, it has the newest request.
#[derive(Debug, Default)]
struct Ranking(BTreeSet<(usize, Ticket, u64)>);

/// Position of a request within a lane, by which it is removed. `address` and `credential` are the
/// turns under which the lane stores them, `at` is the index in the credential's queue.
#[derive(Clone, Copy, Debug)]
struct Position {
    address: u64,
    credential: u64,
    at: usize,
}

impl<L, W> FairQueue<L, W> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            lanes: Vec::new(),
            addresses: HashMap::new(),
            by_count: Ranking::default(),
            turns: 0,
            tickets: 0,
            waiting: 0,
            max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    /// Changes the maximum number of waiting requests. Requests beyond a lower maximum stay; each further
    /// one then needs to evict another.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
    }

    /// Adds a request to the lane `lane`. A full queue evicts another request, which is returned.
    /// It is chosen from the address with the most waiting requests, and there from the credential
    /// with the most: the newest request of that credential.
    ///
    /// If the new request would make its own address the one with the most requests, a request of
    /// another credential of the same address is evicted. Invented credentials therefore evict no
    /// requests of other addresses.
    ///
    /// Returns `None`, and rejects the new request, if the queue is full and no other client has
    /// more requests: with the new request, no address would have more than its own, and no
    /// credential of that address more than its own.
    pub(super) fn join(
        &mut self,
        lane: L,
        client: ClientKey,
        waiter: W,
    ) -> Option<(Ticket, Option<W>)>
    where
        L: PartialEq,
    {
        let evicted = if self.waiting < self.max {
            None
        } else {
            Some(self.evict_for(client)?)
        };
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let (address, credential) = self.count_in(client, ticket);
        let open = self.lanes.iter().position(|one| one.lane == lane);
        let lane = open.unwrap_or_else(|| {
            let addresses = BTreeMap::new();
            self.lanes.push(Lane { lane, addresses });
            self.lanes.len() - 1
        });
        let in_address = self.lanes[lane]
            .addresses
            .entry(address)
            .or_insert_with(|| AddressLine {
                address: client.address,
                credentials: BTreeMap::new(),
            });
        let line = in_address
            .credentials
            .entry(credential)
            .or_insert_with(|| CredentialLine {
                credential: client.credential,
                queue: VecDeque::new(),
            });
        line.queue.push_back((ticket, waiter));
        Some((ticket, evicted))
    }

    /// Removes a request that was not served, for example because its client disconnected. `None`
    /// if the request was served or evicted already.
    pub(super) fn leave(&mut self, client: ClientKey, ticket: Ticket) -> Option<W> {
        let address = self.addresses.get(&client.address)?;
        let credential = address.credentials.get(&client.credential)?;
        let (address, credential) = (address.turn, credential.turn);
        let find = |lane: &Lane<L, W>| {
            let in_address = lane.addresses.get(&address)?;
            let queue = &in_address.credentials.get(&credential)?.queue;
            let at = queue.binary_search_by_key(&ticket, |(one, _)| *one).ok()?;
            Some(Position {
                address,
                credential,
                at,
            })
        };
        let mut lanes = self.lanes.iter().enumerate();
        let (lane, position) = lanes.find_map(|(index, lane)| Some((index, find(lane)?)))?;
        let (_, waiter) = self.take_out(lane, position)?;
        Some(waiter)
    }

    /// Returns the index of the lane (the requests that wait for the same backends) whose first
    /// request is served next. Only lanes for which `may` is true are considered: those whose
    /// backends may have a free slot.
    pub(super) fn next(&self, may: impl Fn(&L) -> bool) -> Option<usize> {
        let heads = self.lanes.iter().enumerate().filter_map(|(index, lane)| {
            let (address, in_address) = lane.addresses.first_key_value()?;
            let (credential, line) = in_address.credentials.first_key_value()?;
            // A credential may be first in several lanes, with the same turn. Then its oldest
            // request is served first.
            let (ticket, _) = line.queue.front()?;
            may(&lane.lane).then_some(((*address, *credential, *ticket), index))
        });
        heads.min().map(|(_, index)| index)
    }

    pub(super) fn lane(&mut self, index: usize) -> &mut L {
        &mut self.lanes[index].lane
    }

    /// Iterates over the keys of all lanes, the groups of requests that wait for the same backends.
    /// The caller updates the keys, for example after a change of the backends.
    pub(super) fn lanes(&mut self) -> impl Iterator<Item = &mut L> {
        self.lanes.iter_mut().map(|lane| &mut lane.lane)
    }

    /// Iterates over the keys of all lanes with the number of their waiting requests.
    pub(super) fn lane_lengths(&self) -> impl Iterator<Item = (&L, usize)> {
        self.lanes.iter().map(|lane| {
            let lines = lane.addresses.values();
            let lines = lines.flat_map(|address| address.credentials.values());
            (&lane.lane, lines.map(|line| line.queue.len()).sum())
        })
    }

    /// Removes and returns the first request of a lane, which gets a slot. Its client address and
    /// its credential get the last turn, so that other addresses and credentials are served first.
    pub(super) fn pop(&mut self, index: usize) -> Option<W> {
        let lane = self.lanes.get(index)?;
        let (address, in_address) = lane.addresses.first_key_value()?;
        let position = Position {
            address: *address,
            credential: *in_address.credentials.first_key_value()?.0,
            at: 0,
        };
        let (client, waiter) = self.take_out(index, position)?;
        self.move_to_end(client, position);
        Some(waiter)
    }

    /// Removes and returns all requests of a lane, because no backend is left that could serve
    /// them.
    pub(super) fn pop_all(&mut self, index: usize) -> Vec<W> {
        let addresses = std::mem::take(&mut self.lanes[index].addresses);
        self.forget_lane_if_empty(index);
        let mut popped = Vec::new();
        for in_address in addresses.into_values() {
            let address = in_address.address;
            for line in in_address.credentials.into_values() {
                let credential = line.credential;
                for (ticket, waiter) in line.queue {
                    let client = ClientKey {
                        address,
                        credential,
                    };
                    self.count_out(client, ticket);
                    popped.push(waiter);
                }
            }
        }
        popped
    }

    /// Evicts a waiting request, to make room for a request of `newcomer`, and returns its handle.
    /// `None` if no other client has more requests than `newcomer` would have.
    fn evict_for(&mut self, newcomer: ClientKey) -> Option<W> {
        let (max_count, _, fullest) = self.by_count.last()?;
        let own = self.addresses.get(&newcomer.address);
        let waiting = own.map_or(0, |own| own.tickets.len());
        let address = if waiting + 1 < max_count {
            fullest
        } else {
            newcomer.address
        };
        let evicted = self.addresses.get(&address)?;
        let (max_count, ticket, credential) = evicted.by_count.last()?;
        if address == newcomer.address {
            let own = evicted.credentials.get(&newcomer.credential);
            if own.map_or(0, |own| own.tickets.len()) + 1 >= max_count {
                return None;
            }
        }
        let client = ClientKey {
            address,
            credential,
        };
        self.leave(client, ticket)
    }

    fn take_out(&mut self, lane: usize, position: Position) -> Option<(ClientKey, W)> {
        let addresses = &mut self.lanes[lane].addresses;
        let in_address = addresses.get_mut(&position.address)?;
        let line = in_address.credentials.get_mut(&position.credential)?;
        let (ticket, waiter) = line.queue.remove(position.at)?;
        let client = ClientKey {
            address: in_address.address,
            credential: line.credential,
        };
        if line.queue.is_empty() {
            in_address.credentials.remove(&position.credential);
        }
        if in_address.credentials.is_empty() {
            addresses.remove(&position.address);
        }
        self.forget_lane_if_empty(lane);
        self.count_out(client, ticket);
        Some((client, waiter))
    }

    /// Gives the last turn to the address and credential whose request was just served, if they
    /// still have waiting requests. Otherwise one client would be served before all others. `from`
    /// has their old turns.
    fn move_to_end(&mut self, client: ClientKey, from: Position) {
        let Some(address) = self.addresses.get_mut(&client.address) else {
            return;
        };
        self.turns += 1;
        let turn = self.turns;
        address.turn = turn;
        let credential = address.credentials.get_mut(&client.credential);
        let has_more = credential.is_some();
        if let Some(credential) = credential {
            credential.turn = turn;
        }
        for lane in &mut self.lanes {
            let Some(mut in_address) = lane.addresses.remove(&from.address) else {
                continue;
            };
            if has_more && let Some(line) = in_address.credentials.remove(&from.credential) {
                in_address.credentials.insert(turn, line);
            }
            lane.addresses.insert(turn, in_address);
        }
    }

    /// Adds a request to the counts of its address and credential, by which evictions are decided.
    /// Returns the turns of both, the numbers by which they are served in order.
    fn count_in(&mut self, client: ClientKey, ticket: Ticket) -> (u64, u64) {
        let turns = &mut self.turns;
        let mut next_turn = || {
            *turns += 1;
            *turns
        };
        let address = self.addresses.entry(client.address).or_default();
        if address.tickets.is_empty() {
            address.turn = next_turn();
        }
        let credential = address.credentials.entry(client.credential);
        let credential = credential.or_insert_with(|| Credential {
            turn: next_turn(),
            tickets: Tickets::default(),
        });
        let add = |tickets: &mut Tickets| tickets.0.insert(ticket);
        self.by_count
            .update(client.address, &mut address.tickets, add);
        address
            .by_count
            .update(client.credential, &mut credential.tickets, add);
        self.waiting += 1;
        (address.turn, credential.turn)
    }

    fn count_out(&mut self, client: ClientKey, ticket: Ticket) {
        let Some(address) = self.addresses.get_mut(&client.address) else {
            return;
        };
        let remove = |tickets: &mut Tickets| tickets.0.remove(&ticket);
        let was_waiting = self
            .by_count
            .update(client.address, &mut address.tickets, remove);
        self.waiting -= usize::from(was_waiting);
        if let Some(credential) = address.credentials.get_mut(&client.credential) {
            address
                .by_count
                .update(client.credential, &mut credential.tickets, remove);
            if credential.tickets.is_empty() {
                address.credentials.remove(&client.credential);
            }
        }
        if address.tickets.is_empty() {
            self.addresses.remove(&client.address);
        }
    }

    fn forget_lane_if_empty(&mut self, index: usize) {
        if self.lanes[index].addresses.is_empty() {
            self.lanes.swap_remove(index);
        }
    }
}

impl Tickets {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Ranking {
    fn last(&self) -> Option<(usize, Ticket, u64)> {
        self.0.last().copied()
    }

    /// Changes the set of waiting requests of the address or credential `key`, and moves `key` to
    /// its new rank. With an outdated rank, a full queue would evict a request of the wrong client.
    fn update<T>(
        &mut self,
        key: u64,
        tickets: &mut Tickets,
        change: impl FnOnce(&mut Tickets) -> T,
    ) -> T {
        let rank = |tickets: &Tickets| Some((tickets.len(), *tickets.0.last()?, key));
        if let Some(before) = rank(tickets) {
            self.0.remove(&before);
        }
        let changed = change(tickets);
        self.0.extend(rank(tickets));
        changed
    }
}

#[cfg(test)]
mod tests;
