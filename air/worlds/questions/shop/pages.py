"""The shop's pages, modelled on WebShop's text mode: the text of each page, and the page that each click
leads to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from air.worlds.questions.shop.catalogue import Product, goods
from air.worlds.questions.shop.search import index

BUY = "buy now"
_BACK, _PREVIOUS, _NEXT = "back to search", "< prev", "next >"
_SUB_PAGES = ("description", "features", "reviews")
_RESULTS_OF_A_PAGE = 10


@dataclass(frozen=True)
class Page:
    """The page that the agent sees: the search page, a page of results, a product page, or a sub-page of a
    product."""

    results: tuple[str, ...] | None = None
    """The numbers of the products that the last search found, best first; None on the search page."""
    number: int = 1
    """The number of the current page of results, counted from 1."""
    asin: str = ""
    """The number of the product whose page is open; empty if no product page is open."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options that the agent has chosen for the product, by option name."""
    sub_page: str = ""
    """The open sub-page of the product (`description`, `features` or `reviews`); empty on the main product
    page."""

    @property
    def product(self) -> Product | None:
        """The product whose page is open, or None."""
        return goods()[self.asin] if self.asin else None

    @property
    def listed(self) -> tuple[str, ...]:
        """The numbers of the products that the current page of results lists."""
        start = (self.number - 1) * _RESULTS_OF_A_PAGE
        return (self.results or ())[start : start + _RESULTS_OF_A_PAGE]


def found(keywords: str) -> Page:
    """Searches the shop for `keywords`, and returns the first page with the products found."""
    return Page(results=tuple(index().find(keywords)))


def clickable(page: Page) -> list[str]:
    """Returns the texts on `page` that the agent can click, in lower case."""
    if page.results is None:
        return []
    if page.product is None:
        previous = [_PREVIOUS] if page.number > 1 else []
        return [_BACK, *previous, _NEXT, *(asin.lower() for asin in page.listed)]
    if page.sub_page:
        return [_BACK, _PREVIOUS]
    values = [value for values in page.product.options.values() for value in values]
    return [_BACK, _PREVIOUS, *values, *_SUB_PAGES, BUY]


def clicked(page: Page, text: str) -> Page:
    """Returns the page to which a click on `text` leads. `text` must be one of those that `clickable` returns
    for `page`, but not `buy now`, because a purchase ends the episode and leads to no page."""
    if text == _BACK:
        return Page()
    if text == _NEXT:
        return replace(page, number=page.number + 1)
    if text == _PREVIOUS:
        return _previous(page)
    if page.product is None:
        return replace(page, asin=text.upper())
    if text in _SUB_PAGES:
        return replace(page, sub_page=text)
    names = [name for name, values in page.product.options.items() if text in values]
    return replace(page, options={**page.options, **dict.fromkeys(names, text)})


def _previous(page: Page) -> Page:
    if page.sub_page:
        return replace(page, sub_page="")
    if page.asin:
        return replace(page, asin="", options={})
    return replace(page, number=page.number - 1)


def text_of(page: Page, instruction: str) -> str:
    """Returns the observation that shows `page`: the instruction, the page's text, and the available
    actions."""
    parts = ["Instruction:", instruction]
    if page.results is None:
        parts = ["WebShop", *parts, "Search"]
    elif page.product is None:
        parts += _results(page)
    elif page.sub_page:
        parts += ["Back to Search", "< Prev", *_about(page.product, page.sub_page)]
    else:
        parts += _product(page.product)
        if page.options:
            parts.append("You have clicked " + ", ".join(page.options.values()))
    return " [SEP] ".join(parts) + "\nAvailable actions: " + ", ".join(actions(page))


def actions(page: Page) -> list[str]:
    """Returns the available actions of a page as the agent must write them, such as `click[next >]`."""
    search = ["search[<content>]"] if page.results is None else []
    return search + [f"click[{text}]" for text in clickable(page)]


def _results(page: Page) -> list[str]:
    previous = ["< Prev"] if page.number > 1 else []
    head = f"Page {page.number} (Total results: {len(page.results or ())})"
    lines = ["Back to Search", head, *previous, "Next >"]
    for asin in page.listed:
        lines += [asin, goods()[asin].title, f"${goods()[asin].price:.2f}"]
    return lines


def _product(product: Product) -> list[str]:
    lines = ["Back to Search", "< Prev"]
    for name, values in product.options.items():
        lines += [name, *values]
    price = f"Price: ${product.price:.2f}"
    return [
        *lines,
        product.title,
        price,
        "Rating: N.A.",
        "Description",
        "Features",
        "Reviews",
        "Buy Now",
    ]


def _about(product: Product, sub_page: str) -> list[str]:
    texts = {"description": [product.description], "features": list(product.features)}
    return texts.get(sub_page, [])
