"""The live page's own markup, style and script. What came from devices is put in as text."""

STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:1rem auto;max-width:75rem;padding:0 1rem}
.devices{display:flex;flex-wrap:wrap;gap:2px}
.devices i{width:10px;height:10px;background:#8888}
.devices i.ok{background:#2a8a3e}
.devices i.bad{background:#c62828}
button{font:inherit;padding:.3rem 1rem}
td,th{text-align:left;padding:.1rem .8rem .1rem 0;vertical-align:top;overflow-wrap:anywhere}
"""

BODY = """
<p><output id="status" aria-live="polite">waiting for the journal</output></p>
<p><button id="stop" disabled>Stop: begin no further device</button></p>
<div id="waves"></div>
<h2>What went wrong</h2><table><tbody id="errors"></tbody></table>
<h2>Which failed last</h2><table><tbody id="failed"></tbody></table>
"""

SCRIPT = """
"use strict";
const at = (id) => document.getElementById(id);
const kinds = ["", "ok", "bad"];
let squares = [], said = [];
const row = (cells) => {
  const line = document.createElement("tr");
  for (const cell of cells) line.insertCell().textContent = cell;
  return line;
};
const source = new EventSource("events");
source.addEventListener("waves", (event) => {
  squares = []; said = [];
  at("waves").replaceChildren(...JSON.parse(event.data).waves.map((wave) => {
    const part = document.createElement("section");
    const title = part.appendChild(document.createElement("h2"));
    said.push((c) => {
      title.textContent = `${wave.wave}: ${c[0]} of ${wave.total} done, ${c[1]} failed`;
    });
    const grid = part.appendChild(document.createElement("div"));
    grid.className = "devices";
    for (const name of wave.devices) {
      const square = grid.appendChild(document.createElement("i"));
      square.title = name;
      squares.push(square);
    }
    return part;
  }));
});
source.addEventListener("news", (event) => {
  const news = JSON.parse(event.data);
  at("status").textContent = `${news.action} ${news.status}`;
  at("stop").disabled = !news.under_way;
  news.counts.forEach((counts, number) => said[number](counts));
  for (const [number, state] of news.states) squares[number].className = kinds[state];
  at("errors").replaceChildren(...news.errors.map(([error, count]) => row([count, error])));
  at("failed").replaceChildren(...news.failed.reverse().map(row));
});
source.onerror = () => { at("status").textContent = "edgepack fleet watch has ended"; };
at("stop").addEventListener("click", () => fetch("stop", {method: "POST"}));
"""
