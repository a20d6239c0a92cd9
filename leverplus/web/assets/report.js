"use strict";
// Draws the charts of a page from their series, and redraws them when the reader's colours, the paper or the numbers change.
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const themes = {
    light: { ink: "#3c4043", grid: "#e6e8eb", zero: "#80868b" },
    dark: { ink: "#c8ccd1", grid: "#33373d", zero: "#9aa0a6" },
  };
  const ACCENT = "#e0592a";
  const GREY = "#9aa0a6";
  // What every page colours alike; the colours are readable on white and on dark grey.
  const ROLES = {
    learned: [ACCENT, "solid"], random: [GREY, "solid"], zero_shot: [GREY, "dot"], oracle: ["#c79a1b", "dash"],
    clear: [ACCENT], "within noise": [GREY], stage: [GREY, "dot"], finding: ["#c62828", "dash"],
    pool: ["#8f6bc4"], count: ["#c79a1b"], choice: [ACCENT], order: ["#2f7fc1"],
  };
  const SPARE = ["#2f7fc1", "#2a9d8f", "#8f6bc4", "#c05780", "#5b8c3a", "#a0664a", "#4a6fa5", "#7a9a01", "#b07aa1", "#6c757d"];
  const LABEL = 30; // most characters of a name beside a chart
  const PAPER = 600; // pixels that fit between the margins of A4 and Letter
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displayModeBar: false, showLink: false };
  const places = document.querySelectorAll("[data-figure]");
  const shown = new Map(); // figure -> which of its series are to be seen

  function current() {
    return dark.matches ? themes.dark : themes.light;
  }

  // Plotly reads a few tags in a text as markup.
  function plain(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function style(figure, series) {
    if (series.role in ROLES) return ROLES[series.role];
    const others = figure.series.filter(function (own) { return !(own.role in ROLES); });
    if (!series.role && others[0] === series) return [ACCENT, "solid"];
    return [SPARE[others.indexOf(series) % SPARE.length], "solid"];
  }

  function interval(values, ends, colour) {
    const above = [], below = [];
    values.forEach(function (value, place) {
      const own = ends[place] || [value, value];
      above.push(own[1] - value);
      below.push(value - own[0]);
    });
    return { type: "data", symmetric: false, array: above, arrayminus: below, color: colour, thickness: 1.3, width: 0 };
  }

  function trace(figure, series, number) {
    const [colour, dash] = style(figure, series);
    const own = { name: series.name, x: series.x, y: series.y, visible: shown.get(figure)[number] };
    if (figure.kind === "bars") {
      if (series.texts.length) Object.assign(own, { text: series.texts, textposition: "none", hovertemplate: "%{text}: %{y}<extra></extra>" });
      return Object.assign(own, { type: "bar", marker: { color: colour } });
    }
    const wide = series.role === "learned";
    const open = series.role === "within noise";
    const lone = figure.id === "accuracy" && series.x.length === 1 && series.x[0] === 0;
    own.mode = figure.kind === "lines" ? "lines+markers" : "markers";
    own.line = { color: colour, dash: dash || "solid", width: wide ? 3 : 1.6 };
    own.marker = { color: colour, size: wide ? 9 : 7, symbol: open ? "circle-open" : "circle" };
    if (series.texts.length) Object.assign(own, { text: series.texts.map(plain), hoverinfo: "text", textposition: "none" });
    if (figure.kind === "forest") own.error_x = interval(series.x, series.ends, colour);
    else if (series.ends.length) own.error_y = interval(series.y, series.ends, colour);
    if (figure.id === "accuracy" && !lone) {
      // a little apart, so that error bars stand beside each other
      const shift = 0.4 * (number / Math.max(1, figure.series.length - 1) - 0.5);
      own.x = series.x.map(function (n) { return n ? n + shift : 0; });
    }
    if (lone) { // what shows nothing is the same at every number of shots
      own.x = [0, Math.max.apply(null, figure.series.flatMap(function (other) { return other.x; }))];
      own.y = [series.y[0], series.y[0]];
      own.text = own.text.concat(own.text);
    }
    return own;
  }

  function axis(title, theme) {
    const base = { gridcolor: theme.grid, zerolinecolor: theme.zero, linecolor: theme.grid, fixedrange: true };
    return title ? Object.assign(base, { title: { text: title } }) : base;
  }

  function layoutOf(figure, theme, width) {
    const layout = {
      font: { family: "system-ui, sans-serif", size: 12.5, color: theme.ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      // below, room for ticks and a title: a margin found by drawing may not settle, since the ticks follow from it
      margin: { l: 44, r: 12, t: 10, b: figure.x ? 46 : 30 },
      height: { accuracy: 460, cost: 380 }[figure.id] || 290,
      hoverlabel: { align: "left" },
      hovermode: "closest",
      showlegend: false,
      barmode: "relative",
      bargap: figure.series.length > 1 ? 0.5 : 0.1,
      xaxis: axis(figure.x, theme),
      yaxis: Object.assign({ automargin: true }, axis(figure.y, theme)),
      shapes: [],
      annotations: [],
    };
    if (figure.id === "accuracy") Object.assign(layout.xaxis, { dtick: 1, zeroline: false });
    if (figure.kind === "forest") {
      const labels = figure.labels.map(function (label) {
        const cut = label.lastIndexOf(" · ");
        const room = LABEL - (label.length - cut);
        return label.length > LABEL ? label.slice(0, room - 1) + "…" + label.slice(cut) : label;
      });
      // About 7 pixels per character. Plotly's own margin, found by drawing again and again, does not settle beside long
      // names on a narrow screen.
      layout.margin = { l: 12 + 7 * Math.max.apply(null, labels.map(function (own) { return own.length; })), r: 12, t: 10, b: 36 };
      layout.height = 120 + 22 * labels.length;
      Object.assign(layout.xaxis, { zeroline: true, zerolinewidth: 2 });
      // reversed: the first comparison stands at the top
      const ticks = { tickvals: labels.map(function (_, place) { return place; }), ticktext: labels.map(plain) };
      Object.assign(layout.yaxis, ticks, { range: [labels.length - 0.3, -0.7], automargin: false, zeroline: false });
    }
    figure.marks.forEach(function (mark) {
      const [colour, dash] = ROLES[mark[2]];
      const found = mark[2] === "finding";
      layout.shapes.push({ type: "line", x0: mark[0], x1: mark[0], y0: 0, y1: 1, yref: "paper", line: { color: colour, width: 1.2, dash: dash } });
      const note = { x: mark[0], y: found ? 0 : 1, yref: "paper", yanchor: found ? "bottom" : "top", text: plain(mark[1]), showarrow: false };
      // findings stand at the bottom, because the names of the stages stand at the top
      layout.annotations.push(Object.assign(note, found ? { bgcolor: colour, font: { color: "#fff" } } : { xanchor: "left" }));
    });
    if (width) layout.width = width;
    return layout;
  }

  function draw(place, theme, width) {
    const figure = figures[place.dataset.figure];
    const data = figure.series.map(function (series, number) { return trace(figure, series, number); });
    Plotly.react(place, data, layoutOf(figure, theme, width), config);
  }

  function paint(theme, width) {
    places.forEach(function (place) { draw(place, theme, width); });
  }

  // A legend of buttons beside the chart: it wraps on a phone, is reached by keyboard, and shows or hides a series.
  function legend(place) {
    const figure = figures[place.dataset.figure];
    const visible = figure.series.map(function (series) { return !series.hidden; });
    shown.set(figure, visible);
    if (figure.series.length < 2) return;
    const row = document.createElement("div");
    row.className = "legend";
    figure.series.forEach(function (series, number) {
      const [colour, dash] = style(figure, series);
      const button = document.createElement("button");
      const swatch = document.createElement("span");
      swatch.className = figure.kind === "lines" ? "line" : "dot";
      swatch.style.color = colour;
      swatch.style.borderTopStyle = { dash: "dashed", dot: "dotted" }[dash] || "solid";
      button.type = "button";
      button.append(swatch, series.name);
      button.setAttribute("aria-pressed", String(visible[number]));
      button.addEventListener("click", function () {
        visible[number] = !visible[number];
        button.setAttribute("aria-pressed", String(visible[number]));
        draw(place, current());
      });
      row.append(button);
    });
    place.before(row);
  }

  // For a page that follows a training: the same charts with more numbers.
  window.redraw = function (name, figure) {
    const place = document.querySelector(`[data-figure="${name}"]`);
    const before = shown.get(figures[name]);
    const same = before.length === figure.series.length;
    shown.set(figure, same ? before : figure.series.map(function () { return true; }));
    figures[name] = figure;
    draw(place, current());
  };

  places.forEach(legend);
  paint(current());
  dark.addEventListener("change", function () { paint(current()); });
  window.addEventListener("beforeprint", function () { paint(themes.light, PAPER); });
  window.addEventListener("afterprint", function () { paint(current()); });
  document.documentElement.dataset.ready = "yes";
})();
