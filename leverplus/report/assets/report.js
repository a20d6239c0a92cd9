"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const themes = {
    light: { ink: "#3c4043", grid: "#e6e8eb", zero: "#80868b" },
    dark: { ink: "#c8ccd1", grid: "#33373d", zero: "#9aa0a6" },
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displayModeBar: false, showLink: false };
  const PAPER = 600; // pixels that fit between the margins of A4 and Letter
  const places = document.querySelectorAll("[data-figure]");

  function current() {
    return dark.matches ? themes.dark : themes.light;
  }

  function axis(own, theme) {
    const base = { gridcolor: theme.grid, zerolinecolor: theme.zero, linecolor: theme.grid, fixedrange: true };
    return Object.assign(base, own);
  }

  function draw(place, theme, width) {
    const figure = figures[place.dataset.figure];
    const layout = Object.assign(
      {
        font: { family: "system-ui, sans-serif", size: 12.5, color: theme.ink },
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        // below, room for ticks and a title: a margin found by drawing may not settle, since the ticks follow from it
        margin: { l: 44, r: 12, t: 10, b: (figure.layout.xaxis || {}).title ? 46 : 30 },
        height: figure.height,
        hoverlabel: { align: "left" },
        hovermode: "closest",
        showlegend: false,
      },
      JSON.parse(JSON.stringify(figure.layout))
    );
    layout.xaxis = axis(layout.xaxis, theme);
    layout.yaxis = axis(Object.assign({ automargin: true }, layout.yaxis), theme);
    if (width) layout.width = width;
    Plotly.react(place, figure.data, layout, config);
  }

  function paint(theme, width) {
    places.forEach(function (place) { draw(place, theme, width); });
  }

  // A legend of buttons beside the chart: it wraps on a phone, is reached by keyboard, and shows or hides a series.
  function legend(place) {
    const named = figures[place.dataset.figure].data.filter(function (trace) { return trace.name && trace.showlegend !== false; });
    if (named.length < 2) return;
    const row = document.createElement("div");
    row.className = "legend";
    named.forEach(function (trace) {
      const button = document.createElement("button");
      const swatch = document.createElement("span");
      const line = trace.line || {};
      const dotted = !trace.mode || trace.mode === "markers";
      swatch.className = dotted ? "dot" : "line";
      swatch.style.color = line.color || trace.marker.color;
      swatch.style.borderTopStyle = { dash: "dashed", dot: "dotted" }[line.dash] || "solid";
      button.type = "button";
      button.append(swatch, trace.name);
      button.setAttribute("aria-pressed", String(trace.visible !== false));
      button.addEventListener("click", function () {
        trace.visible = trace.visible === false;
        button.setAttribute("aria-pressed", String(trace.visible));
        draw(place, current());
      });
      row.append(button);
    });
    place.before(row);
  }

  places.forEach(legend);
  paint(current());
  dark.addEventListener("change", function () { paint(current()); });
  window.addEventListener("beforeprint", function () { paint(themes.light, PAPER); });
  window.addEventListener("afterprint", function () { paint(current()); });
  document.documentElement.dataset.ready = "yes";
})();
