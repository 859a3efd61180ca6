"use strict";
(() => {
  const table = document.getElementById("episodes");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows];
  const task = document.getElementById("task"), words = document.getElementById("words");
  const errors = document.getElementById("errors"), count = document.getElementById("count");
  const filter = () => {
    const wanted = words.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = (!task.value || row.dataset.task === task.value)
        && (!errors.checked || Number(row.dataset.errors) > 0)
        && row.textContent.toLowerCase().includes(wanted);
      row.hidden = !fits;
      const episode = document.getElementById(row.dataset.open);
      if (episode) episode.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    count.textContent = shown + " shown";
  };
  for (const each of [task, words, errors]) each.addEventListener("input", filter);
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!head) return;
    const at = head.cellIndex, down = head.dataset.down !== "1";
    head.dataset.down = down ? "1" : "0";
    const value = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent;
    rows.sort((a, b) => {
      const x = value(a), y = value(b), nx = Number(x), ny = Number(y);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = Number.isNaN(nx) || Number.isNaN(ny) ? x.localeCompare(y) : nx - ny;
      return down ? -order : order;
    });
    body.append(...rows);
  });
  const open = (id) => {
    const episode = document.getElementById(id);
    if (!episode) return;
    episode.hidden = false;
    episode.open = true;
    episode.scrollIntoView();
  };
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) open(row.dataset.open);
  });
  if (/^#e[0-9]+$/.test(location.hash)) open(location.hash.slice(1));
})();
