//! Broken variants: the protocol with one guard missing.

/// A guard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// The cursor moves in a transaction of its own, before the copy.
    CursorBeforeData,
    /// The copy is written without the segment's record; the cursor follows.
    CursorAfterData,
    /// The copy's transaction does not check v1.
    NoV1Check,
    /// A new generation begins without closing the records of the old one.
    OldGenerationOpen,
    /// Generation start does not check what it read of the plan.
    GenerationStartUnchecked,
    /// Repair start does not check what it read of the plan.
    RepairStartUnchecked,
    /// The end of a repair leaves its records open.
    RepairLeftOpen,
    /// A repair's write is not bound to its record.
    RepairUnfenced,
    /// Publish is not bound to the plan that names its epoch.
    EpochUnbound,
    /// Dual mutations do not check the barrier.
    DualIgnoresBarrier,
    /// v1-only mutations do not check the barrier.
    V1OnlyIgnoresBarrier,
    /// The cutover does not wait until nodes that know no barrier are gone.
    RolloutUnchecked,
    /// A delete leaves v2's copy alone.
    DeleteIgnoresV2,
    /// Publish does not check that the barrier is held.
    MarkerWithoutBarrier,
    /// Publish does not wait for the verification.
    VerificationIncomplete,
    /// Publish compares the verification's totals and not its digests.
    TotalsAlone,
    /// An epoch may be used again after its release.
    EpochReused,
    /// A v2-only node works before the marker.
    V2OnlyTooEarly,
    /// Backfill puts over a present copy.
    CopyOverwrites,
    /// Under v2 authority a guard may be absent, as before the marker.
    GuardLenient,
    /// A plan is made without a look at the marker.
    OpeningUnchecked,
    /// A takeover ends without closing the records of the generation.
    TakeoverLeavesSegments,
    /// A takeover ends without closing the records of a repair.
    TakeoverLeavesRepair,
    /// A v2-only node works where the marker is there and a plan of ours is short of final.
    V2OnlyBeforeTakeover,
    /// A cutover begins whatever its run saw, and though its epoch has ended.
    LateInstall,
    /// A run verifies by the segments of the plan that it copied under, and records of any walk count.
    OldPlan,
}

impl Flaw {
    /// The plan still never returns to earlier bytes, but for the end of a repair.
    pub(crate) fn keeps_plan(self) -> bool {
        !matches!(
            self,
            Self::GenerationStartUnchecked
                | Self::RepairStartUnchecked
                | Self::EpochUnbound
                | Self::EpochReused
                | Self::LateInstall
        )
    }
}
