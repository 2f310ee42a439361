//! What a history is cast with: drawn from its seed.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use metashift::environment::{Clock, Entropy, Environment, SystemClock, SystemEntropy};
use metashift::layout::{Layout, Tables};
use metashift_faults::Proxy;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::super::support::TABLE;

/// What a history is about. Seeds take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Small pages in two segments, nodes of every mode, a person who may remove the barrier by hand.
    Hot,
    /// Pages of several transactions, and migrators that die between them. Every node is dual.
    Groups,
    /// Operators with other numbers of segments who start generations, and a node rolled back to v1 that writes until
    /// the barrier.
    Operators,
    /// Another migrator on the same table.
    Foreign,
    /// Few keys, answers that are lost, copies that arrive late, and nodes that stand still longer than a token is good.
    Frozen,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Hot, Self::Groups, Self::Operators, Self::Foreign, Self::Frozen];

    pub(crate) fn of(seed: u64) -> Self {
        let turn = usize::try_from(seed % Self::ALL.len() as u64).unwrap();
        Self::ALL[turn]
    }
}

/// Sizes of a history, and whose clocks are wrong.
#[derive(Debug, Clone)]
pub(crate) struct Cast {
    pub(crate) kind: Kind,
    /// Items that no node touches before the marker.
    pub(crate) still: u32,
    /// Items of one scan.
    pub(crate) page: u32,
    /// Segments of the plan, as each of two operators wants it.
    pub(crate) segments: [u32; 2],
    /// Segments of the last run, where another operator starts a generation of one meanwhile.
    pub(crate) last_segments: Option<u32>,
    /// Keys that nodes fight over.
    pub(crate) hot: usize,
    /// Deletes among ten changes.
    pub(crate) deletes: u32,
    /// No node writes v1 alone: the copies never differ.
    pub(crate) always_dual: bool,
    /// v2-only nodes delete what no node touched before; whatever is still on its way may not bring it back.
    pub(crate) wiped: bool,
    /// Clocks of participants differ by minutes.
    pub(crate) skewed: bool,
}

impl Cast {
    pub(crate) fn of(kind: Kind, random: &mut SmallRng) -> Self {
        let mut cast = Self {
            kind,
            still: 24,
            page: 5,
            segments: [2, 2],
            last_segments: None,
            hot: 8,
            deletes: 3,
            always_dual: random.random_range(0..2_u32) == 0,
            wiped: random.random_range(0..2_u32) == 0,
            skewed: random.random_range(0..2_u32) == 0,
        };
        match kind {
            Kind::Hot => {}
            Kind::Groups => {
                cast.still = 240;
                cast.page = 110;
                let segments = random.random_range(1..=2_u32);
                cast.segments = [segments, segments];
                cast.always_dual = true;
            }
            Kind::Operators => {
                let mut of = |choice: [u32; 3]| choice[random.random_range(0..3_usize)];
                cast.segments = [of([3, 6, 12]), of([1, 1, 2])];
                cast.last_segments = Some(of([64, 90, 128]));
                cast.still = 24;
                cast.page = of([5, 20, 50]);
                cast.always_dual = false;
            }
            Kind::Foreign => cast.still = 40,
            Kind::Frozen => {
                cast.hot = 3;
                cast.deletes = 5;
            }
        }
        cast
    }

    /// A participant's wall clock: right, or off by up to five minutes.
    pub(crate) fn clock(&self, seed: u64) -> Arc<dyn Clock> {
        let mut random = SmallRng::seed_from_u64(seed ^ 0xc10c);
        let seconds = if self.skewed { random.random_range(-300..=300_i64) } else { 0 };
        Arc::new(Skewed(SignedDuration::from_secs(seconds)))
    }
}

/// The system's clock, off by so much.
#[derive(Debug)]
struct Skewed(SignedDuration);

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        SystemClock.now() + self.0
    }
}

/// Both tables as a participant sees them: through a proxy, by its own clock.
pub(crate) fn tables_at(proxy: &Proxy, clock: Arc<dyn Clock>) -> Tables {
    tables_in(&proxy.endpoint(), clock, Arc::new(SystemEntropy))
}

/// As [`tables_at`], with the randomness that its process draws.
pub(crate) fn tables_in(endpoint: &str, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Tables {
    let client = metashift_sandbox::server::client(endpoint);
    Tables::new(client, TABLE, None, Layout::default(), Environment { clock, entropy })
}
