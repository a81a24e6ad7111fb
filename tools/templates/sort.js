// A click on a column's head sorts its table: numbers (of equally many decimals) by value, empty cells last; again for the other order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const text = row => row.cells[column].textContent.trim();
      body.append(...[...body.rows].sort((a, b) => {
        const [s, t] = [text(a), text(b)];
        return !s - !t || (up ? 1 : -1) * s.localeCompare(t, "en", { numeric: true });
      }));
    };
  });
}
document.querySelector(".sorts").hidden = false;
