// Everything that comes from the service is shown as text (textContent) or as a picture (a data: URL); nothing is ever
// read as HTML.
"use strict";

const TERMS = [
  ["score", "what this way of choosing ranks by"],
  ["similarity", "weighted cosine to the query"],
  ["label", "what labels add to the score"],
  ["effect", "what the demonstration adds to accuracy, as measured"],
  ["interaction", "what the learned selector sees in the pair"],
];
const SHOWN = 24;
const by = (id) => document.getElementById(id);

function make(tag, text, className) {
  const one = document.createElement(tag);
  if (text !== undefined) one.textContent = text;
  if (className) one.className = className;
  return one;
}

function say(text) {
  by("message").textContent = text;
  by("message").hidden = !text;
}

async function ask(path, body) {
  const headers = { "content-type": "application/json" };
  const token = by("token").value;  // kept in the page only
  if (token) headers["x-lever-token"] = token;
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  if (answer.status === 401) by("token-label").hidden = false;
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error((found.error && found.error.message) || `The service answered ${answer.status}.`);
  return found;
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("The picture cannot be read."));
    reader.readAsDataURL(file);
  });
}

function card(demo) {
  const one = make("li");
  if (typeof demo.image === "string" && /^data:image\/(png|jpeg|webp|gif|bmp);base64,/.test(demo.image)) {
    const picture = make("img");
    picture.alt = "Picture of this demonstration";
    picture.src = demo.image;
    one.append(picture);
  }
  one.append(make("span", demo.question), make("b", demo.answer), make("span", demo.id, "id"));
  return one;
}

function number(value) {
  return value === null || value === undefined ? "–" : value.toFixed(3);
}

function show(found) {
  const why = found.explanation;
  by("picks").replaceChildren(...found.demos.map(card));
  if (!found.demos.length) by("picks").append(make("li", "No demonstration is shown."));
  by("timing").textContent = `${found.ms.toFixed(1)} ms, fingerprint ${found.fingerprint}`;
  const nearest = why.nearest_would_show.join(", ") || "none";
  const among = why.candidates.length === 1 ? "1 candidate" : `${why.candidates.length} candidates`;
  by("why").textContent = `Way of choosing: ${why.arm}, among ${among}. The most similar examples would have been: ${nearest}.`;
  const used = TERMS.filter(([term]) => why.candidates.some((one) => one[term] !== null));
  by("head").replaceChildren(make("th", "place"), make("th", "question", "text"), make("th", "answer", "text"));
  for (const [term, meaning] of used) {
    const head = make("th", term);
    head.title = meaning;
    by("head").append(head);
  }
  const chosen = why.candidates.filter((one) => one.place !== null);
  const others = why.candidates.filter((one) => one.place === null).slice(0, SHOWN);
  chosen.sort((a, b) => b.place - a.place);
  by("candidates").replaceChildren(...[...chosen, ...others].map((one) => {
    const row = make("tr", undefined, one.place === null ? "" : "taken");
    row.append(make("td", one.place === null ? "" : String(one.place)));
    row.append(make("td", one.question, "text"), make("td", one.answer, "text"));
    for (const [term] of used) row.append(make("td", number(one[term])));
    return row;
  }));
  by("chosen").hidden = false;
}

async function choose(event) {
  event.preventDefault();
  say("Choosing … The first choice loads the encoder and may take some seconds.");
  by("choose").disabled = true;
  try {
    const body = { question: by("question").value, explain: true };
    if (by("shots").value !== "") body.shots = Number(by("shots").value);
    const [file] = by("image").files;
    if (file) body.image = await asDataUrl(file);
    show(await ask("/select", body));
    say("");
  } catch (error) {
    by("chosen").hidden = true;
    say(error.message);
  } finally {
    by("choose").disabled = false;
  }
}

async function introduce() {
  try {
    const about = await ask("/info");
    by("name").textContent = about.name;
    by("about").textContent = `This bundle holds ${about.count.toLocaleString("en")} demonstrations. Type a question`
      + `${about.pictures ? " and give its picture" : ""} to see which of them it would show. Way of choosing: ${about.arm}.`;
    by("shots").max = about.most_shots;
    by("shots").placeholder = String(about.shots);
    say("");
  } catch (error) {
    by("about").textContent = "";
    say(error.message);
  }
}

by("ask").addEventListener("submit", choose);
by("token").addEventListener("change", introduce);
introduce();
