//! Plots as SVG text: grouped bars and lines, with intervals. Colours come from the page's style,
//! so that one drawing serves light and dark.

use crate::statistics::Interval;
use std::fmt::Write;

/// A set of marks of one colour.
pub(crate) struct Series {
    pub(crate) name: String,
    /// In bars one for each group, the first number unused; in lines (x, y).
    pub(crate) points: Vec<(f64, Option<Interval>)>,
    pub(crate) dashed: bool,
}

/// What stands around a plot.
pub(crate) struct Labels<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    pub(crate) width: f64,
    /// A value with a line of its own.
    pub(crate) mark: Option<f64>,
}

/// Widths of a plot that has the page to itself, and of one that shares it.
pub(crate) const WHOLE: f64 = 920.0;
pub(crate) const HALF: f64 = 450.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 18.0;
const BOTTOM: f64 = 44.0;
/// Colours that the style has.
const COLOURS: usize = 8;

/// Bars side by side, group by group.
pub(crate) fn bars(labels: &Labels<'_>, groups: &[String], series: &[Series]) -> String {
    let mut svg = Canvas::new(labels, series);
    let slot = (labels.width - LEFT - RIGHT) / groups.len().max(1) as f64;
    let width = slot * 0.8 / series.len().max(1) as f64;
    for (i, group) in groups.iter().enumerate() {
        let left = LEFT + slot * (i as f64 + 0.1);
        // Labels that would run into each other are left out.
        if slot > 22.0 || i % 2 == 0 {
            svg.text(left + slot * 0.4, HEIGHT - BOTTOM + 16.0, "middle", group);
        }
        for (k, series) in series.iter().enumerate() {
            let Some((_, Some(found))) = series.points.get(i) else { continue };
            let (x, y) = (left + width * k as f64, svg.y(found.value));
            let (w, h) = (width * 0.9, svg.y(0.0) - y);
            let about = format!("{}, {group}: {}", series.name, short(found.value));
            svg.add(&format!(
                "<rect class='c{}' rx='1.5' x='{x:.1}' y='{y:.1}' width='{w:.1}' height='{h:.1}'>\
                 <title>{}</title></rect>",
                k % COLOURS,
                escape(&about)
            ));
            svg.whisker(x + w / 2.0, found, "w");
        }
    }
    svg.finish(series)
}

/// Bars on top of each other, one pile a group.
pub(crate) fn piles(labels: &Labels<'_>, groups: &[String], series: &[Series]) -> String {
    let value =
        |series: &Series, i: usize| series.points.get(i).and_then(|p| p.1).map_or(0.0, |v| v.value);
    let total = |i: usize| series.iter().map(|s| value(s, i)).sum::<f64>();
    let exact = |value: f64| Some(Interval { value, low: value, high: value });
    let highest = Series {
        name: String::new(),
        points: (0..groups.len()).map(|i| (0.0, exact(total(i)))).collect(),
        dashed: false,
    };
    let mut svg = Canvas::new(labels, &[highest]);
    let slot = (labels.width - LEFT - RIGHT) / groups.len().max(1) as f64;
    for (i, group) in groups.iter().enumerate() {
        let (left, width) = (LEFT + slot * (i as f64 + 0.25), slot * 0.5);
        svg.text(left + width / 2.0, HEIGHT - BOTTOM + 16.0, "middle", group);
        let mut below = 0.0;
        for (k, series) in series.iter().enumerate() {
            let (low, high) = (svg.y(below), svg.y(below + value(series, i)));
            below += value(series, i);
            let about = escape(&format!("{}, {group}: {}", series.name, short(value(series, i))));
            svg.add(&format!(
                "<rect class='c{}' x='{left:.1}' y='{high:.1}' width='{width:.1}' height='{:.1}'>\
                 <title>{about}</title></rect>",
                k % COLOURS,
                low - high
            ));
        }
        svg.text(left + width / 2.0, svg.y(below) - 5.0, "middle", &short(below));
    }
    svg.finish(series)
}

/// Lines over a logarithmic x axis.
pub(crate) fn lines(labels: &Labels<'_>, series: &[Series]) -> String {
    let mut svg = Canvas::new(labels, series);
    let mut ticks: Vec<f64> = series.iter().flat_map(|s| s.points.iter().map(|p| p.0)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let (low, high) = match (ticks.first(), ticks.last()) {
        (Some(&low), Some(&high)) => (low.max(1.0).ln(), high.max(2.0).ln()),
        _ => (0.0, 1.0),
    };
    let place = |x: f64| {
        LEFT + 16.0
            + (x.max(1.0).ln() - low) / (high - low).max(1e-9)
                * (labels.width - LEFT - RIGHT - 32.0)
    };
    let mut free = f64::NEG_INFINITY;
    for tick in
        ticks.iter().filter(|t| ticks.len() < 16 || (**t as u64).is_power_of_two() || **t == 63.0)
    {
        if place(*tick) >= free {
            svg.text(place(*tick), HEIGHT - BOTTOM + 16.0, "middle", &short(*tick));
            free = place(*tick) + 24.0;
        }
    }
    for (k, series) in series.iter().enumerate() {
        let points: Vec<(f64, Interval)> =
            series.points.iter().filter_map(|(x, y)| Some((place(*x), (*y)?))).collect();
        let path: Vec<String> =
            points.iter().map(|(x, y)| format!("{x:.1},{:.1}", svg.y(y.value))).collect();
        let (colour, dash) =
            (k % COLOURS, if series.dashed { " stroke-dasharray='6 4'" } else { "" });
        svg.add(&format!("<polyline class='l c{colour}'{dash} points='{}'/>", path.join(" ")));
        for ((x, y), (value, _)) in points.iter().zip(&series.points) {
            let about = escape(&format!("{}, {}: {}", series.name, short(*value), short(y.value)));
            let at = svg.y(y.value);
            svg.add(&format!(
                "<circle class='c{colour}' cx='{x:.1}' cy='{at:.1}' r='3'>\
                 <title>{about}</title></circle>"
            ));
            svg.whisker(*x, y, &format!("l c{colour}"));
        }
    }
    svg.finish(series)
}

/// A drawing with its y axis.
struct Canvas {
    svg: String,
    top: f64,
}

impl Canvas {
    fn new(labels: &Labels<'_>, series: &[Series]) -> Self {
        let highest = series
            .iter()
            .flat_map(|s| s.points.iter().filter_map(|p| p.1))
            .map(|i| i.high.max(i.value));
        let (step, top) = ticks(highest.filter(|h| h.is_finite()).fold(0.0, f64::max));
        let width = labels.width;
        let mut canvas = Self { svg: String::new(), top };
        canvas.add(&format!(
            "<svg viewBox='0 0 {width} {HEIGHT}' role='img' aria-label='{0}'><title>{0}</title>",
            escape(labels.title)
        ));
        let mut tick = 0.0;
        while tick <= top * 1.0001 {
            let y = canvas.y(tick);
            canvas.add(&format!(
                "<line class='grid' x1='{LEFT}' x2='{:.1}' y1='{y:.1}' y2='{y:.1}'/>",
                width - RIGHT
            ));
            canvas.text(LEFT - 8.0, y + 4.0, "end", &short(tick));
            tick += step;
        }
        canvas.text((LEFT + width - RIGHT) / 2.0, HEIGHT - 8.0, "middle", labels.x);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        canvas.add(&format!(
            "<text transform='translate(14 {middle:.1}) rotate(-90)' \
             text-anchor='middle'>{}</text>",
            escape(labels.y)
        ));
        if let Some(mark) = labels.mark {
            let (x, y) = (width - RIGHT, canvas.y(mark));
            canvas.add(&format!(
                "<line class='mark' x1='{LEFT}' x2='{x:.1}' y1='{y:.1}' y2='{y:.1}'/>"
            ));
        }
        canvas
    }

    fn add(&mut self, element: &str) {
        self.svg.push_str(element);
        self.svg.push('\n');
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.add(&format!(
            "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>",
            escape(text)
        ));
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value / self.top).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP)
    }

    /// A line over an interval, where it has a length.
    fn whisker(&mut self, x: f64, interval: &Interval, class: &str) {
        let (low, high) = (self.y(interval.low), self.y(interval.high));
        if low - high > 0.5 {
            self.add(&format!(
                "<line class='{class}' x1='{x:.1}' x2='{x:.1}' y1='{low:.1}' y2='{high:.1}'/>"
            ));
        }
    }

    /// The drawing under its legend.
    fn finish(mut self, series: &[Series]) -> String {
        self.add("</svg>");
        let mut legend = String::from("<p class='legend'>");
        for (k, series) in series.iter().enumerate().filter(|_| series.len() > 1) {
            let name = escape(&series.name);
            write!(legend, "<span><i class='c{}'></i>{name}</span> ", k % COLOURS)
                .expect("a string takes it");
        }
        format!("{legend}</p>\n{}", self.svg)
    }
}

/// A round step of an axis up to `highest`, and where the axis ends.
fn ticks(highest: f64) -> (f64, f64) {
    let rough = if highest > 0.0 { highest / 5.0 } else { 0.2 };
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= rough * 0.999)
        .unwrap_or(rough);
    (step, (highest / step).ceil().max(1.0) * step)
}

fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 100.0 || n == n.trunc() => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n >= 0.1 => format!("{number:.2}"),
        _ => format!("{number:.4}"),
    }
}

/// Text for a page.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\'', "&#39;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!(ticks(1234.0), (250.0, 1250.0));
        assert_eq!(ticks(5.0), (1.0, 5.0));
        assert_eq!(ticks(0.0).1, 0.2);
    }

    #[test]
    fn a_plot_has_a_mark_for_each_point_and_no_loose_markup() {
        let value = |v: f64| Some(Interval { value: v, low: v * 0.9, high: v * 1.1 });
        let series = [
            Series {
                name: "a<b".into(),
                points: vec![(1.0, value(3.0)), (8.0, value(5.0))],
                dashed: false,
            },
            Series {
                name: "floor".into(),
                points: vec![(1.0, value(1.0)), (8.0, None)],
                dashed: true,
            },
        ];
        let labels = Labels { title: "x & y", x: "rows", y: "ms", width: HALF, mark: Some(2.0) };
        let lines = lines(&labels, &series);
        assert_eq!(lines.matches("<circle").count(), 3);
        assert!(lines.contains("x &amp; y") && !lines.contains("a<b"));
        let bars = bars(&labels, &["one".into(), "two".into()], &series);
        assert_eq!(bars.matches("<rect").count(), 3);
        assert!(!bars.contains("NaN"));
    }
}
