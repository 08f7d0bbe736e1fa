// What axe asks for in boxes that the theme makes when a page is loaded: a wide table can be scrolled with the
// keyboard, and the buttons of each block of code have a name of their own.
function mend() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
    box.tabIndex = 0
  }
  for (const [number, buttons] of document.querySelectorAll(".md-code__nav").entries()) {
    buttons.ariaLabel = `Code ${number + 1}`
  }
}

new MutationObserver(mend).observe(document.body, { childList: true, subtree: true })
mend()
