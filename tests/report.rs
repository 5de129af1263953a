//! The report of `forerun bench`, as a browser draws it: every plot has its marks inside its frame,
//! light and dark. Skipped, by name, where there is no Chromium.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Looks at every plot and leaves what it saw in the page: marks that have an extent and a colour,
/// and texts that lie outside of their drawing.
const LOOK: &str = "<pre id='seen'></pre><script>
const seen = [...document.querySelectorAll('svg')].map(svg => {
  const frame = svg.getBoundingClientRect();
  const inside = box => box.left >= frame.left - 1 && box.right <= frame.right + 1
    && box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
  const drawn = mark => {
    const box = mark.getBoundingClientRect(), style = getComputedStyle(mark);
    const colour = mark.tagName === 'polyline' ? style.stroke : style.fill;
    return inside(box) && box.width > 0 && colour !== 'none' && colour !== 'rgba(0, 0, 0, 0)';
  };
  const marks = [...svg.querySelectorAll('rect,circle,polyline')];
  const texts = [...svg.querySelectorAll('text')];
  return {title: svg.getAttribute('aria-label'), width: frame.width, height: frame.height, marks: marks.length,
    drawn: marks.filter(drawn).length, cut: texts.filter(t => !inside(t.getBoundingClientRect())).map(t => t.textContent)};
});
const page = {background: getComputedStyle(document.body).backgroundColor,
  wide: document.documentElement.scrollWidth, window: innerWidth, plots: seen};
document.getElementById('seen').textContent = JSON.stringify(page);
</script>";

fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path).find_map(|f| names.iter().map(|n| f.join(n)).find(|p| p.is_file()))
}

fn browse(browser: &Path, folder: &Path, scheme: &str, page: &Path, more: &[&str]) -> Vec<u8> {
    let profile = tempfile::tempdir_in(folder).unwrap();
    let output = Command::new("timeout")
        .args(["-k", "5", "100"])
        .arg(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1100,3600"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            if scheme == "dark" { 0 } else { 1 }
        ))
        .args(more)
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn every_plot_of_the_report_is_drawn() {
    let Some(browser) = chromium() else {
        eprintln!("skipped: every_plot_of_the_report_is_drawn: no chromium is installed");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&folder).unwrap();
    let args = "bench --suite code,math,plan,complete --per-suite 2 --repeats 2 --max-tokens 24 --threads 1 --seed 1 \
                --sweep budget=1,4,16,63 --sweep rows=1,2,4,8,16 --sweep context=64,256 --sweep slots=1,2,4 --out";
    let program = env!("CARGO_BIN_EXE_forerun");
    let ran = Command::new(program).args(args.split_whitespace()).arg(&folder).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let report = folder.join("report.html");
    let watched = folder.join("watched.html");
    std::fs::write(&watched, std::fs::read_to_string(&report).unwrap() + LOOK).unwrap();

    let mut backgrounds = Vec::new();
    for scheme in ["light", "dark"] {
        let dom = String::from_utf8(browse(&browser, &folder, scheme, &watched, &["--dump-dom"]))
            .unwrap();
        let seen =
            dom.split("<pre id=\"seen\">").nth(1).and_then(|rest| rest.split("</pre>").next());
        let page: Value =
            serde_json::from_str(&seen.expect("the script ran").replace("&amp;", "&")).unwrap();
        let plots = page["plots"].as_array().unwrap();
        let titles: Vec<&str> = plots.iter().filter_map(|p| p["title"].as_str()).collect();
        for wanted in [
            "Tokens per second by suite and mode",
            "Times plain decoding by suite and mode",
            "Acceptance lengths of chain",
            "Acceptance lengths of tree",
            "Milliseconds of a round by stage",
            "Budget sweep",
            "Speed against context",
            "Texts at once",
            "Milliseconds of a verify by rows",
        ] {
            assert!(titles.contains(&wanted), "{wanted} is not among {titles:?}");
        }
        for plot in plots {
            assert!(
                plot["width"].as_f64().unwrap() > 300.0 && plot["height"].as_f64().unwrap() > 100.0,
                "{plot}"
            );
            assert!(plot["marks"].as_u64().unwrap() > 0, "{plot}");
            // A bar of no height is still a bar; all else has a place and a colour.
            assert_eq!(plot["marks"], plot["drawn"], "{plot}");
            assert_eq!(plot["cut"], serde_json::json!([]), "{plot}");
        }
        assert!(
            page["wide"].as_f64() <= page["window"].as_f64(),
            "the page is wider than its window: {page}"
        );
        backgrounds.push(page["background"].clone());

        let picture = folder.join(format!("{scheme}.png"));
        let _ = std::fs::remove_file(&picture);
        browse(
            &browser,
            &folder,
            scheme,
            &report,
            &[&format!("--screenshot={}", picture.display())],
        );
        let bytes = std::fs::read(&picture).expect("a screenshot");
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() > 50_000, "{} bytes", bytes.len());
    }
    assert_ne!(backgrounds[0], backgrounds[1], "light and dark");
}
