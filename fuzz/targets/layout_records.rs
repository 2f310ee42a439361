//! Records, page cursors and shard tables of the layout. The first byte chooses.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metashift::ErrorKind;
use metashift::layout::Layout;
use metashift::layout::cursor::PageCursor;
use metashift::layout::records::control::Control;
use metashift::layout::records::plan::Plan;
use metashift::layout::records::reject::Reject;
use metashift::layout::records::segment::Segment;
use metashift::layout::records::{Record, decode, encode};

fn survives<R: Record + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    match decode::<R>("key", bytes) {
        Ok(record) => assert_eq!(decode::<R>("key", &encode(&record).unwrap()).unwrap(), record),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Corruption | ErrorKind::NewerRecord)),
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&chosen, bytes)) = data.split_first() else { return };
    match chosen {
        b'p' => survives::<Plan>(bytes),
        b's' => survives::<Segment>(bytes),
        b'r' => survives::<Reject>(bytes),
        b'c' => survives::<Control>(bytes),
        b'l' => match Layout::from_json(bytes) {
            Ok(layout) => {
                let again = Layout::from_json(serde_json::to_string(&layout).unwrap().as_bytes()).unwrap();
                assert_eq!(again.fingerprint(), layout.fingerprint());
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidInput),
        },
        _ => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let (prefix, text) = text.split_once('\n').unwrap_or(("tbl/", text));
            let layout = Layout::default();
            if let Ok(cursor) = PageCursor::decode(text, prefix, &layout) {
                assert_eq!(PageCursor::decode(&cursor.encode(prefix), prefix, &layout).unwrap(), cursor);
            }
        }
    }
});
