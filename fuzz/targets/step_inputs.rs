//! What a Lambda is handed: every input is of its documented form, or `InvalidInput`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metashift::ErrorKind;
use metashift::catalog::step;
use metashift::layout::input::{
    BackfillPageInput, CheckRolloutInput, FinishRepairInput, Input, InstallBarrierInput, PreflightInput,
    PublishMarkerInput, ReleaseBarrierInput, RepairPageInput, VerifyInput, VerifyPrefixReadsInput, parse,
    release_of_event,
};
use serde_json::Value;

fn typed<T: Input>(raw: &Value) {
    if let Err(error) = parse::<T>(raw.clone()).and_then(|input| input.layout().map(drop)) {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(raw) = serde_json::from_slice::<Value>(data) else { return };
    typed::<PreflightInput>(&raw);
    typed::<BackfillPageInput>(&raw);
    typed::<VerifyInput>(&raw);
    typed::<RepairPageInput>(&raw);
    typed::<FinishRepairInput>(&raw);
    typed::<CheckRolloutInput>(&raw);
    typed::<InstallBarrierInput>(&raw);
    typed::<PublishMarkerInput>(&raw);
    typed::<ReleaseBarrierInput>(&raw);
    typed::<VerifyPrefixReadsInput>(&raw);
    match release_of_event(&raw, Some("lake"), None) {
        Ok(Some(release)) => typed::<ReleaseBarrierInput>(&release),
        Ok(None) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput),
    }
    if let Err(error) = step::Input::parse(raw) {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
});
