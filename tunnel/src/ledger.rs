//! Who pays for bytes that nobody has read yet.
//!
//! The packet tunnel has no flow control for a single connection, so a receiver must hold what a slow reader leaves.
//! One [`Ledger`] a process bounds the sum: a connection may queue a free [`ALLOWANCE`], and beyond it as long as its
//! charge is below half of what is left (dynamic threshold; Choudhury and Hahne, IEEE/ACM Transactions on Networking,
//! 1998). One stalled reader so takes a third of the budget before the tunnel's window is withheld for it, ten take a twelfth
//! each, and there is room for a newcomer. Between our own ends [`crate::credit`] keeps a connection far below that.

use std::cell::Cell;

/// What a connection may queue without being charged, in bytes.
pub const ALLOWANCE: usize = 64 * 1024;

/// Default budget of a process for charged bytes where memory is not limited, or by much more: 64 MiB.
pub const DEFAULT_BUDGET: usize = 64 * 1024 * 1024;

/// Smallest budget that makes sense: below it a single message of upstream's limit does not fit.
pub const MIN_BUDGET: usize = 4 * 1024 * 1024;

/// The budget of a process that may use `limit` bytes of memory: a quarter of them, within [`MIN_BUDGET`] and
/// [`DEFAULT_BUDGET`]. The rest is for what is not charged; with a budget beyond the limit the kernel would end the
/// process at the first stall, and published manifests allow an agent 30 MiB.
#[must_use]
pub fn default_budget(limit: Option<u64>) -> usize {
    limit
        .and_then(|limit| usize::try_from(limit / 4).ok())
        .map_or(DEFAULT_BUDGET, |quarter| {
            quarter.clamp(MIN_BUDGET, DEFAULT_BUDGET)
        })
}

/// The byte budget of one worker.
#[derive(Debug)]
pub struct Ledger {
    budget: usize,
    used: Cell<usize>,
}

impl Ledger {
    /// A ledger of `budget` bytes, at least [`MIN_BUDGET`].
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self {
            budget: budget.max(MIN_BUDGET),
            used: Cell::new(0),
        }
    }

    /// Bytes in the budget.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes charged now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Bytes left.
    #[must_use]
    pub fn free(&self) -> usize {
        self.budget.saturating_sub(self.used.get())
    }

    /// Whether more than nine tenths are charged.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.used.get() > self.budget / 10 * 9
    }
}

/// What one queue has been charged. Gives it all back when dropped.
#[derive(Debug)]
pub struct Account {
    ledger: std::rc::Rc<Ledger>,
    allowance: usize,
    charged: usize,
}

impl Account {
    /// An account without a charge, whose first [`ALLOWANCE`] bytes are free.
    #[must_use]
    pub fn new(ledger: std::rc::Rc<Ledger>) -> Self {
        Self {
            ledger,
            allowance: ALLOWANCE,
            charged: 0,
        }
    }

    /// An account that is charged for every byte: for what a window of its own bounds, which shrinks as the budget fills.
    #[must_use]
    pub fn whole(ledger: std::rc::Rc<Ledger>) -> Self {
        Self {
            ledger,
            allowance: 0,
            charged: 0,
        }
    }

    /// Charges for a queue that costs `cost` bytes now, in place of the charge before.
    pub fn set(&mut self, cost: usize) {
        let charged = cost.saturating_sub(self.allowance);
        self.ledger
            .used
            .set(self.ledger.used.get() - self.charged + charged);
        self.charged = charged;
    }

    /// Bytes charged.
    #[must_use]
    pub fn charged(&self) -> usize {
        self.charged
    }

    /// Whether the queue is beyond its share: more than half of what is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.charged > self.ledger.free() / 2
    }

    /// The ledger that this is part of.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// Fills `account` in steps of 16 KiB until it is over its share.
    fn fill(account: &mut Account) -> usize {
        let mut cost = 0;
        while !account.is_over() {
            cost += 16 * 1024;
            account.set(cost);
        }
        account.charged()
    }

    #[test]
    fn the_default_budget_leaves_room_under_a_memory_limit() {
        const MIB: u64 = 1024 * 1024;
        let budget = |limit| default_budget(limit) as u64;
        assert_eq!(budget(None), 64 * MIB);
        assert_eq!(budget(Some(30 * MIB)), 15 * MIB / 2);
        assert_eq!(budget(Some(8 * MIB)), 4 * MIB);
        assert_eq!(budget(Some(1024 * MIB)), 64 * MIB);
    }

    #[test]
    fn one_stalled_reader_takes_a_third_and_leaves_room_for_a_newcomer() {
        let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
        let mut first = Account::new(ledger.clone());
        let taken = fill(&mut first);
        assert!(taken.abs_diff(DEFAULT_BUDGET / 3) < 64 * 1024, "{taken}");
        let mut second = Account::new(ledger.clone());
        assert!(fill(&mut second) > DEFAULT_BUDGET / 6);
        assert!(ledger.free() > DEFAULT_BUDGET / 4);
    }

    #[test]
    fn the_allowance_is_free_even_when_the_budget_is_gone() {
        let ledger = Rc::new(Ledger::new(MIN_BUDGET));
        let mut hog = Account::new(ledger.clone());
        hog.set(2 * MIN_BUDGET);
        assert!(ledger.is_tight() && hog.is_over());
        let mut small = Account::new(ledger.clone());
        small.set(ALLOWANCE);
        assert!(!small.is_over());
        small.set(ALLOWANCE + 1);
        assert!(small.is_over());
    }

    proptest! {
        #[test]
        fn the_ledger_is_the_sum_of_its_accounts(costs in prop::collection::vec((0usize..8, 0usize..1 << 24), 0..64)) {
            let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
            let mut accounts: Vec<_> = (0..8).map(|_| Account::new(ledger.clone())).collect();
            for (i, cost) in costs {
                accounts[i].set(cost);
                prop_assert_eq!(ledger.used(), accounts.iter().map(Account::charged).sum::<usize>());
            }
            drop(accounts);
            prop_assert_eq!(ledger.used(), 0);
        }
    }
}
