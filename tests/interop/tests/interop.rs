//! exploration
use std::sync::Arc;
use object_store::memory::InMemory;

#[tokio::test]
async fn dump() {
    use moraine_061 as m;
    let store = Arc::new(InMemory::new());
    let catalog = m::Catalog::open(store.clone(), m::CatalogOptions::default()).await.unwrap();
    let column = m::ColumnDef { name: "id".into(), column_type: "BIGINT".into(), nulls_allowed: true, default_value: None, children: vec![] };
    catalog.commit(|tx| {
        let sales = tx.create_schema("sales")?;
        tx.create_table(sales, "orders", &[column.clone()])?;
        Ok(())
    }).await.unwrap();
    for round in 0..2u8 {
    catalog.commit(|tx| {
        let sales = tx.schema_by_name("sales").unwrap();
        let orders = tx.table_by_name(sales.id, "orders").unwrap();
        let version = 1;
        tx.inline_insert(orders.id, &m::InlineChunk { schema_version: version, arrow_schema: vec![1,2,3], arrow_body: vec![round;4], row_count: 3 }, &[])?;
        Ok(())
    }).await.unwrap();
    }
    catalog.commit(|tx| {
        let sales = tx.schema_by_name("sales").unwrap();
        let orders = tx.table_by_name(sales.id, "orders").unwrap();
        tx.inline_delete(orders.id, 1, &[])?;
        let f = tx.register_data_file(orders.id, m::DataFile { path: "a.parquet".into(), path_is_relative: true, file_format: "parquet".into(), record_count: 10, file_size_bytes: 100, footer_size: 10, encryption_key: None, partition_values: vec![], column_stats: vec![] }, &[])?;
        tx.register_delete_file(orders.id, m::DeleteFile { data_file_id: f, path: "d.parquet".into(), path_is_relative: true, format: "parquet".into(), delete_count: 1, file_size_bytes: 10, footer_size: 1, encryption_key: None }, &[])?;
        Ok(())
    }).await.unwrap();
    let s = catalog.snapshot().await.unwrap();
    println!("{:?}", s.current_snapshot());
    catalog.close().await.unwrap();
    let db = slatedb::DbReader::builder("", store.clone()).with_reader_mode(slatedb::DbReaderMode::FollowLatest)
        .with_segment_extractor(Arc::new(metashift::catalog::store::TagExtractor)).build().await.unwrap();
    let mut rows = db.scan::<std::ops::RangeFull>(..).await.unwrap();
    while let Some(row) = rows.next().await.unwrap() {
        let key: String = row.key.iter().map(|b| format!("{b:02x}")).collect();
        let value: String = row.value.iter().map(|b| format!("{b:02x}")).collect();
        println!("{key} {:?} = {value} {:?}", metashift::catalog::key::Key::decode(&row.key), String::from_utf8_lossy(&row.value[5..]));
    }
}
