"use strict";
// The page of a review. Text of rows only ever becomes textContent. The next row comes with the answer that the verdict
// is kept, so the page never moves on before that.

const KEYS = {
  r: "right", arrowright: "right",
  w: "wrong", arrowleft: "wrong",
  u: "unsure", arrowdown: "unsure",
  b: "back", arrowup: "back",
  t: "trust",
};
const WORDS = { right: "✓ right", wrong: "✗ wrong", unsure: "? unsure" };
const at = (id) => document.getElementById(id);

let person = null;
let row = null;
let sawTrust = false;
let busy = false;

async function ask(action, body) {
  const response = await fetch("api/" + action, body === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  if (response.ok) return response.json();
  let reason = response.status + " " + response.statusText;
  if (response.status === 403) reason = "this page is of a server that has ended; open the URL of the new one";
  try { reason = (await response.json()).error || reason; } catch { /* not JSON */ }
  throw new Error(reason);
}

function say(text, alarm = false) {
  at("message").textContent = text;
  at("message").classList.toggle("alarm", alarm);
}

function fill(id, text, none) {
  at(id).textContent = text === null || text === "" ? none : text;
  at(id).classList.toggle("empty", text === null || text === "");
}

function show(page) {
  row = page.row;
  sawTrust = false;
  at("count").textContent =
    page.num_judged + " of " + page.num_rows + " judged, " + page.num_own + " by you";
  at("progress-box").hidden = false;
  at("progress").max = page.num_rows;
  at("progress").value = page.num_judged;
  at("row").hidden = row === null;
  at("keys").hidden = false;
  if (row === null) {
    at("row").dataset.rowId = "";
    return;
  }
  fill("prompt", row.prompt, "(empty)");
  fill("label", row.label, "(could not be read)");
  fill("completion", row.completion, "(empty)");
  at("row-id").textContent = row.row_id;
  at("row").dataset.rowId = row.row_id;
  at("trust").textContent = row.has_trust ? "hidden" : "none: the arm does not rank";
  window.scrollTo(0, 0);
}

function rest(page) {
  if (page.row !== null) return "";
  return page.num_elsewhere
    ? "The last " + page.num_elsewhere + " rows are with others. Press B to go back, or reload the page later."
    : "All rows are judged. `curate review result RUN` says what they give. Press B to go back.";
}

async function act(what) {
  if (busy || person === null || (row === null && what !== "back")) return;
  busy = true;
  document.body.classList.add("busy");
  try {
    if (what === "trust") {
      const { trust } = await ask("trust", { person, row_id: row.row_id });
      if (trust !== null) {
        sawTrust = true;
        at("trust").textContent = trust.toFixed(3);
      }
    } else if (what === "back") {
      const before = at("row").dataset.rowId;
      const page = await ask("back", { person });
      show(page);
      say(page.row !== null && page.row.row_id !== before ? "Back: your last verdict is withdrawn."
        : "There is no verdict of yours to take back.");
    } else {
      const page = await ask("verdict", { person, row_id: row.row_id, verdict: what, saw_trust: sawTrust });
      const kept = "Kept: row " + row.row_id + " " + WORDS[what];
      show(page);
      say(rest(page) || kept);
    }
  } catch (error) {
    say("Not kept: " + (error instanceof TypeError ? "the server does not answer; start it again, and open its URL"
      : error.message), true);
  } finally {
    busy = false;
    document.body.classList.remove("busy");
  }
}

async function begin(name) {
  try {
    const page = await ask("page", { person: name });
    person = name;
    sessionStorage.setItem("person", name);
    at("who").textContent += " · judged by " + name;
    at("start").hidden = true;
    show(page);
    say(rest(page) || "Is the weak label right?");
  } catch (error) {
    say(error.message, true);
  }
}

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey || person === null) return;
  const what = KEYS[event.key.toLowerCase()];
  if (what === undefined) return;
  event.preventDefault();
  act(what);
});
for (const button of document.querySelectorAll("button[data-act]")) {
  button.addEventListener("click", () => { button.blur(); act(button.dataset.act); });
}
at("start").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = at("person").value.trim();
  if (name) begin(name);
});

(async () => {
  try {
    const told = await ask("start");
    document.title = "Review " + told.review;
    at("title").textContent = "Review " + told.review;
    at("who").textContent = "arm " + told.arm + " of " + told.run;
    const known = sessionStorage.getItem("person");
    if (known) return await begin(known);
    at("person").value = told.person;
    at("start").hidden = false;
    at("person").select();
  } catch (error) {
    say(error.message, true);
  }
})();
