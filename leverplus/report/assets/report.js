"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const themes = {
    light: { ink: "#3c4043", grid: "#e6e8eb", zero: "#80868b" },
    dark: { ink: "#c8ccd1", grid: "#33373d", zero: "#9aa0a6" },
  };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displayModeBar: false, showLink: false };

  function axis(own, theme) {
    return Object.assign({ gridcolor: theme.grid, zerolinecolor: theme.zero, linecolor: theme.grid, fixedrange: true, automargin: true }, own);
  }

  function paint(theme) {
    document.querySelectorAll("[data-figure]").forEach(function (place) {
      const figure = figures[place.dataset.figure];
      const layout = Object.assign(
        {
          font: { family: "system-ui, sans-serif", size: 13, color: theme.ink },
          paper_bgcolor: "rgba(0,0,0,0)",
          plot_bgcolor: "rgba(0,0,0,0)",
          margin: { l: 48, r: 12, t: 12, b: 40 },
          height: figure.height,
          hoverlabel: { align: "left" },
          legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
          hovermode: "closest",
        },
        JSON.parse(JSON.stringify(figure.layout))
      );
      layout.xaxis = axis(layout.xaxis, theme);
      layout.yaxis = axis(layout.yaxis, theme);
      Plotly.react(place, figure.data, layout, config);
    });
  }

  function current() {
    return dark.matches ? themes.dark : themes.light;
  }

  paint(current());
  dark.addEventListener("change", function () { paint(current()); });
  window.addEventListener("beforeprint", function () { paint(themes.light); });
  window.addEventListener("afterprint", function () { paint(current()); });
  document.documentElement.dataset.ready = "yes";
})();
