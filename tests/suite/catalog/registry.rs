//! The registry is injectable: synthetic units run through the same driver.

use bytes::Bytes;
use metashift::catalog::batch::Batch;
use metashift::catalog::driver::{Request, run};
use metashift::catalog::key::{Current, Entity, Key};
use metashift::catalog::read::Range;
use metashift::catalog::seed::Seed;
use metashift::catalog::units::{Kind, Registry, Translation, Unit};
use metashift::catalog::value::OptionScope;
use metashift::catalog::value::frame;
use metashift::{ErrorKind, Result};

use super::support::{
    Ended, Mortal, PATH, at, budget, copied, dump, environment, kind, records, seeded, tamper, until_death,
};

/// Moves every option scope of kind `from_kind` to kind `to_kind`, the value as it is.
struct MoveOptions {
    name: &'static str,
    from: &'static [u64],
    to: u64,
    from_kind: u64,
    to_kind: u64,
}

impl Unit for MoveOptions {
    fn name(&self) -> &'static str {
        self.name
    }

    fn source_formats(&self) -> &'static [u64] {
        self.from
    }

    fn to_format(&self) -> u64 {
        self.to
    }

    fn kind(&self) -> Kind {
        Kind::Rewriting
    }

    fn source(&self) -> Range {
        let kind = [&[4, 2, 0x0d][..], &self.from_kind.to_be_bytes()].concat();
        Range::prefix(&kind)
    }

    fn translate(&self, key: &Bytes, value: &Bytes) -> Result<Translation> {
        let Key::Current(Current::Entity(Entity::Option { scope_id, .. })) = Key::decode(key)? else {
            panic!("no option: {key:?}");
        };
        let moved = option(self.to_kind, scope_id);
        Ok(Translation {
            batch: Batch { puts: vec![(moved.into(), value.clone())], deletes: vec![key.clone()] },
            claim: None,
        })
    }
}

fn option(scope_kind: u64, scope_id: u64) -> Vec<u8> {
    Key::Current(Current::Entity(Entity::Option { scope_kind, scope_id })).encode()
}

fn registry() -> Registry {
    Registry::new(
        vec![
            Box::new(MoveOptions { name: "one", from: &[8], to: 9, from_kind: 5, to_kind: 6 }),
            Box::new(MoveOptions { name: "two", from: &[9], to: 11, from_kind: 6, to_kind: 7 }),
        ],
        &[9, 11],
    )
}

#[tokio::test]
async fn a_chain_of_synthetic_rewriting_units_preserves_option_records_through_crashes_after_every_write() {
    let store = seeded(Seed::small(8)).await;
    let scope = |id: u64| OptionScope { options: [("key".to_owned(), format!("value {id}"))].into() };
    let puts: Vec<_> = (0..600).map(|id| (option(5, id), frame(&scope(id)).to_vec())).collect();
    tamper(&store, &puts, &[]).await;
    for writes in 0.. {
        let shared = copied(&store).await;
        let mortal = Mortal::with_writes(shared.clone(), writes);
        let location = metashift::catalog::location::Location::new(mortal.clone() as _, PATH);
        let (registry, request) = (registry(), Request::to(11));
        let ended = until_death(
            &mortal,
            Box::pin(run(&location, &registry, &request, &environment(), budget(), &|_| {})),
        )
        .await;
        mortal.kill();
        let report = run(&at(&shared), &registry, &request, &environment(), budget(), &|_| {}).await.unwrap();
        assert!(report.done);
        let dump = dump(&shared).await;
        assert_eq!(records(&dump).format.unwrap().format_version, 11);
        let kept = dump.iter().filter(|(key, _)| key.starts_with(&option(7, 0)[..11])).count();
        assert_eq!(kept, 600, "dead after {writes} writes");
        for id in 0..600 {
            let (key, value) = (option(7, id), frame(&scope(id)));
            assert!(dump.iter().any(|(at, found)| *at == key && *found == value), "option {id} is lost");
            assert!(!dump.iter().any(|(at, _)| *at == option(5, id) || *at == option(6, id)));
        }
        if let Ended::Lived(result) = ended {
            assert_eq!(result.unwrap().units, ["one", "two"]);
            break;
        }
    }
}

#[tokio::test]
async fn a_target_that_the_registry_does_not_know_is_refused() {
    let store = seeded(Seed::small(8)).await;
    let result = run(&at(&store), &registry(), &Request::to(12), &environment(), budget(), &|_| {}).await;
    assert_eq!(kind(&result), ErrorKind::InvalidInput);
}
