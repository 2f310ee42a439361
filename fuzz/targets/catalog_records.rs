//! Keys, values and system records of a catalog. The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metashift::ErrorKind;
use metashift::catalog::format::SystemRecords;
use metashift::catalog::key::Key;
use metashift::catalog::value::{
    DeleteFile, DeleteTargetEntry, Format, Head, InlineChunk, InlineChunkLocator, Migration, NameEntry,
    OptionScope, RowDeletion, Schema, Snapshot, Table, frame, unframe,
};

fn survives<M: prost::Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    match unframe::<M>(b"key", bytes) {
        Ok(message) => assert_eq!(unframe::<M>(b"key", &frame(&message)).unwrap(), message),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Corruption),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&chosen, bytes)) = data.split_first() else { return };
    match chosen {
        0 => survives::<Format>(bytes),
        1 => survives::<Head>(bytes),
        2 => survives::<Migration>(bytes),
        3 => survives::<Schema>(bytes),
        4 => survives::<Table>(bytes),
        5 => survives::<DeleteFile>(bytes),
        6 => survives::<Snapshot>(bytes),
        7 => survives::<OptionScope>(bytes),
        8 => survives::<RowDeletion>(bytes),
        9 => survives::<InlineChunk>(bytes),
        10 => survives::<InlineChunkLocator>(bytes),
        11 => survives::<NameEntry>(bytes),
        12 => survives::<DeleteTargetEntry>(bytes),
        13 => {
            let mut parts = bytes.splitn(3, |byte| *byte == 0xff);
            let found = SystemRecords::decode(parts.next(), parts.next(), parts.next());
            let _typed = found.and_then(|records| records.gate().map(drop));
        }
        _ => match Key::decode(bytes) {
            Ok(key) => assert_eq!(key.encode(), bytes),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corruption),
        },
    }
});
