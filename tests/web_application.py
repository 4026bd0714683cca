"""A web application that sends what it is asked for, and bills it beside: `uvicorn
web_application:web`."""

from __future__ import annotations

import os

from fastapi import FastAPI

from penstock import App

app = App()
web = FastAPI(lifespan=app.lifespan)
ORDERS, INVOICES = os.environ["ORDERS"], os.environ["INVOICES"]


@app.consumer(ORDERS, group=ORDERS, concurrency=2)
def bill(order: bytes) -> None:
    app.send(INVOICES, order)


@web.post("/orders/{number}", status_code=202)
def order(number: int) -> None:
    app.producer.send_and_wait(ORDERS, b"%d" % number, key=b"%d" % (number % 7), timeout=10.0)
