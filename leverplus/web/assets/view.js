"use strict";
// Follows a training: asks for new epochs, redraws the charts in place, and loads the page again when its shape changes.
(function () {
  const own = document.currentScript.dataset;
  const EVERY = 2000;
  const latest = document.getElementById("latest");
  let epochs = Number(own.epochs);

  // The numbers behind a chart, cell by cell as text.
  function refill(place, rows) {
    const body = place.closest("figure").querySelector("tbody");
    if (!body || !rows) return;
    body.replaceChildren(...rows.map(function (cells) {
      const row = document.createElement("tr");
      cells.forEach(function (text, column) {
        const cell = document.createElement(column ? "td" : "th");
        if (!column) cell.scope = "row";
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }));
  }

  function redraw(figures, tables) {
    document.querySelectorAll("[data-figure]").forEach(function (place) {
      const name = place.dataset.figure;
      if (!figures[name] || !window.redraw) return;
      window.redraw(name, figures[name]);
      refill(place, tables[name]);
    });
  }

  async function ask() {
    try {
      const answer = await fetch(own.live, { cache: "no-store" });
      if (answer.ok) {
        const now = await answer.json();
        const reshaped = Object.keys(now.figures).join(" ") !== own.charts || String(now.findings) !== own.findings;
        if (now.state === "finished" || reshaped) {
          window.location.reload();
          return;
        }
        document.getElementById("state").textContent = now.state;
        if (now.epochs !== epochs) {
          epochs = now.epochs;
          latest.textContent = now.latest;
          redraw(now.figures, now.tables);
        }
      }
    } catch (error) {
      latest.textContent = "the page’s server does not answer; is `lever view` still running?";
    }
    window.setTimeout(ask, EVERY);
  }
  document.documentElement.dataset.following = "yes";
  window.setTimeout(ask, EVERY);
})();
