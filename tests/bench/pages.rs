//! Pages that quote runs.

use crate::program::{refused, stdout};
use serde_json::Value;

/// No figure of the page's tables is typed: each table is a block's. Every run is quoted.
#[test]
fn tables_of_the_page_come_from_runs() {
    let page = std::fs::read_to_string("docs/performance.md").unwrap();
    let blocks = page
        .split("<!-- table: ")
        .skip(1)
        .map(|rest| rest.split_once("<!-- end -->").expect("an end").0);
    let lines = |text: &str| text.lines().filter(|line| line.starts_with('|')).count();
    assert_eq!(lines(&page), blocks.map(lines).sum::<usize>(), "a table outside of the blocks");
    for file in std::fs::read_dir("docs/runs").unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(page.contains(&format!("<!-- table: {name} ")), "the page does not quote {name}");
    }
}

#[test]
fn the_page_is_what_the_runs_give() {
    stdout(&["bench", "tables", "--check"]);

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (runs, page, results) = (path("runs"), path("page.md"), path("results.json"));
    let args = [
        "--suite",
        "code",
        "--per-suite",
        "2",
        "--repeats",
        "1",
        "--max-tokens",
        "8",
        "--modes",
        "off,chain",
    ];
    let found = stdout(&[&["bench", "--json", "--sweep", "context=32"][..], &args].concat());
    std::fs::write(&results, &found).unwrap();
    let add = ["--add", &results, "--name", "mine", "--command", "forerun bench --quick"];
    stdout(&[&["bench", "tables", "--runs", &runs][..], &add].concat());
    let text = "# Page\n\n<!-- table: mine modes -->\n<!-- end -->\nafter\n\
                <!-- table: mine context --><!-- end -->\n";
    std::fs::write(&page, text).unwrap();
    let tables = ["bench", "tables", "--runs", &runs, "--page", &page];
    let check = [&tables[..], &["--check"]].concat();
    assert!(refused(&check).contains("the tables are not what the runs give"));
    assert_eq!(std::fs::read_to_string(&page).unwrap(), text, "checking writes nothing");
    stdout(&tables);
    stdout(&check);
    let written = std::fs::read_to_string(&page).unwrap();
    let found: Value = serde_json::from_str(&found).unwrap();
    let machine = found["machine"]["processor"].as_str().unwrap();
    let length = found["cells"][1]["accept_length"]["value"].as_f64().unwrap();
    for part in [
        "`forerun bench --quick`; ",
        machine,
        "| suite | off, tok/s | chain, times off | AL chain |",
        "\nafter\n",
    ] {
        assert!(written.contains(part), "{part}: {written}");
    }
    let length =
        if length.fract() == 0.0 { format!("| {length:.0} |") } else { format!("| {length:.1} |") };
    assert!(written.contains(&length), "{length}: {written}");
}
