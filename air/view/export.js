"use strict";
(() => {
  const save = (name, url) => {
    const link = document.createElement("a");
    link.download = name;
    link.href = url;
    link.click();
  };
  const picture = (svg, done) => {
    const copy = svg.cloneNode(true), box = svg.viewBox.baseVal, scale = 3;
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", box.width * scale);
    copy.setAttribute("height", box.height * scale);
    const from = svg.querySelectorAll("text, .rule"), to = copy.querySelectorAll("text, .rule");
    from.forEach((each, i) => {
      const style = getComputedStyle(each);
      for (const name of ["fill", "stroke", "font-size", "font-family"])
        to[i].style.setProperty(name, style.getPropertyValue(name));
    });
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas"), draw = canvas.getContext("2d");
      canvas.width = box.width * scale;
      canvas.height = box.height * scale;
      draw.fillStyle = getComputedStyle(document.body).backgroundColor;
      draw.fillRect(0, 0, canvas.width, canvas.height);
      draw.drawImage(image, 0, 0);
      done(canvas.toDataURL("image/png"));
    };
    image.src = "data:image/svg+xml," + encodeURIComponent(new XMLSerializer().serializeToString(copy));
  };
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-save]");
    if (!button) return;
    const { name, csv } = button.parentElement.dataset;
    if (button.dataset.save === "csv") save(name + ".csv", "data:text/csv," + encodeURIComponent(csv));
    else picture(button.closest(".chart").querySelector("svg"), (url) => save(name + ".png", url));
  });
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
