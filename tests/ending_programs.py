"""Programs that send and then end, each in its own way, without `close` or `with`.

Each is run as a file of its own, with a node's URL and a topic as its arguments.
"""

from __future__ import annotations

import signal
import textwrap
from typing import NamedTuple

HEAD = """
import asyncio, concurrent.futures, multiprocessing, os, signal, sys, threading, time
import penstock
from penstock import aio

URL, TOPIC = sys.argv[1:3]

def send(worker, producer=None):
    producer = producer or penstock.connect(URL).producer(linger=60.0)
    for number in range(100):
        producer.send(TOPIC, b"%d %d" % (worker, number))
"""


class Ending(NamedTuple):
    """A program. `senders` of it send `records` records each: "<sender> <number>". `says`: on
    stderr, by itself."""

    body: str
    senders: int = 1
    records: int = 100
    status: int = 0
    says: str = ""

    @property
    def program(self) -> str:
        return HEAD + textwrap.dedent(self.body)


PROGRAMS = {
    "the main thread ends": Ending("""
        producer = penstock.connect(URL).producer()
        for number in range(100):
            producer.send(TOPIC, b"0 %d" % number)
    """),
    "records linger": Ending("""
        send(0)
    """),
    "records gather behind others": Ending(
        """
        producer = penstock.connect(URL).producer(linger=0)
        for number in range(5000):
            producer.send(TOPIC, b"0 %d" % number)
    """,
        records=5000,
    ),
    "batches wait for room": Ending(
        """
        producer = penstock.connect(URL).producer(buffer_bytes_max=1 << 28)
        for number in range(400):
            producer.send(TOPIC, b"0 %d " % number + b"x" * 100_000)
    """,
        records=400,
    ),
    "one call sends many": Ending(
        """
        producer = penstock.connect(URL).producer()
        producer.send_batch(TOPIC, [b"0 %d" % number for number in range(1000)])
    """,
        records=1000,
    ),
    "nobody keeps the producer": Ending("""
        import gc
        send(0)
        gc.collect()
    """),
    "sys.exit": Ending(
        """
        send(0)
        sys.exit(7)
    """,
        status=7,
    ),
    "an exception": Ending(
        """
        send(0)
        raise ValueError("of the program")
    """,
        status=1,
        says="ValueError: of the program",
    ),
    "a Ctrl-C": Ending(
        """
        send(0)
        signal.raise_signal(signal.SIGINT)
    """,
        status=-signal.SIGINT,
        says="KeyboardInterrupt",
    ),
    "threads end, one by sys.exit": Ending(
        """
        def send_and_exit():
            send(1)
            sys.exit(3)
        threads = [threading.Thread(target=send, args=(0,)), threading.Thread(target=send_and_exit)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
        senders=2,
    ),
    "a thread sends when the main thread is over": Ending("""
        producer = penstock.connect(URL).producer(linger=60.0)
        main = threading.main_thread()
        def send_late():
            main.join()
            send(0, producer)
        threading.Thread(target=send_late).start()
    """),
    "daemon threads end with the program": Ending("""
        sent = threading.Event()
        def send_and_stay():
            send(0)
            sent.set()
            time.sleep(3600)
        threading.Thread(target=send_and_stay, daemon=True).start()
        sent.wait()
    """),
    "atexit": Ending("""
        import atexit
        producer = penstock.connect(URL).producer(linger=60.0)
        atexit.register(send, 0, producer)
    """),
    "a fork that sends and exits": Ending(
        """
        producer = penstock.connect(URL).producer(linger=60.0)
        send(0, producer)
        if os.fork() == 0:
            send(1, producer)
            sys.exit()
        os.wait()
    """,
        senders=2,
    ),
}

PROCESSES = {
    "processes by fork": Ending(
        """
        if __name__ == "__main__":
            context = multiprocessing.get_context("fork")
            workers = [context.Process(target=send, args=(n,)) for n in range(2)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            sys.exit(sum(worker.exitcode for worker in workers))
    """,
        senders=2,
    ),
    "processes by fork from a program that has sent": Ending(
        """
        if __name__ == "__main__":
            producer = penstock.connect(URL).producer(linger=60.0)
            send(0, producer)
            worker = multiprocessing.get_context("fork").Process(target=send, args=(1, producer))
            worker.start()
            worker.join()
            sys.exit(worker.exitcode)
    """,
        senders=2,
    ),
    "processes by spawn": Ending("""
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            worker = context.Process(target=send, args=(0,))
            worker.start()
            worker.join()
            sys.exit(worker.exitcode)
    """),
    "processes by the fork server": Ending("""
        if __name__ == "__main__":
            context = multiprocessing.get_context("forkserver")
            worker = context.Process(target=send, args=(0,))
            worker.start()
            worker.join()
            sys.exit(worker.exitcode)
    """),
    "a process that fails": Ending(
        """
        def fail():
            send(0)
            raise ValueError("of the program")
        if __name__ == "__main__":
            worker = multiprocessing.get_context("fork").Process(target=fail)
            worker.start()
            worker.join()
            sys.exit(worker.exitcode - 1)
    """,
        says="ValueError: of the program",
    ),
    "threads of a process": Ending(
        """
        def send_later():
            producer = penstock.connect(URL).producer(linger=60.0)
            main = threading.main_thread()
            def later():
                main.join()
                send(0, producer)
            threading.Thread(target=later).start()
            concurrent.futures.ThreadPoolExecutor(1).submit(send, 1)
        if __name__ == "__main__":
            worker = multiprocessing.get_context("fork").Process(target=send_later)
            worker.start()
            worker.join()
            sys.exit(worker.exitcode)
    """,
        senders=2,
    ),
    "a pool of processes": Ending(
        """
        if __name__ == "__main__":
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                list(pool.map(send, range(4)))
    """,
        senders=4,
    ),
}

LOOPS = {
    "a loop ends": Ending("""
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer()
            for number in range(100):
                producer.send(TOPIC, b"0 %d" % number)
        asyncio.run(main())
    """),
    "a loop ends, and records linger": Ending("""
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer(linger=60.0)
            await producer.send_and_wait(TOPIC, b"0 0")
            for number in range(1, 100):
                producer.send(TOPIC, b"0 %d" % number)
        asyncio.run(main())
    """),
    "records wait in line for room": Ending(
        """
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer(batch_bytes=1 << 16, buffer_bytes_max=1 << 22)
            await producer.send_and_wait(TOPIC, b"0 0")
            for number in range(1, 70):
                producer.send(TOPIC, b"0 %d " % number + b"x" * 60_000)
            for number in range(70, 90):
                producer.send_batch(TOPIC, [b"0 %d " % number + b"x" * 60_000])
        asyncio.run(main())
    """,
        records=90,
    ),
    "a stream is half gone through": Ending(
        """
        import pyarrow
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer(batch_bytes=1 << 16, buffer_bytes_max=1 << 22)
            await producer.send_and_wait(TOPIC, b"0 0")
            values = [b"0 %d " % number + b"x" * 10_000 for number in range(1, 2000)]
            rows = pyarrow.table({"value": values})
            producer.send_arrow(TOPIC, pyarrow.Table.from_batches(rows.to_batches(100)))
            while producer.metrics()["records"] < 200:
                await asyncio.sleep(0)
            print(producer.metrics()["records"], "taken", file=sys.stderr)
        asyncio.run(main())
    """,
        records=2000,
        says=" taken",
    ),
    "a loop that nobody closes": Ending("""
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer()
            for number in range(100):
                producer.send(TOPIC, b"0 %d" % number)
        asyncio.new_event_loop().run_until_complete(main())
    """),
    "a task is cancelled at the loop's end": Ending("""
        async def send():
            async with aio.connect(URL) as client, client.producer() as producer:
                for number in range(100):
                    producer.send(TOPIC, b"0 %d" % number)
                sent.set()
                await asyncio.sleep(3600)
        async def main():
            global sent
            sent = asyncio.Event()
            asyncio.create_task(send())
            await sent.wait()
        asyncio.run(main())
    """),
    "a loop in a daemon thread": Ending(
        """
        sent = threading.Event()
        async def main():
            client = await aio.connect(URL)
            producer = await client.producer(linger=60.0)
            for number in range(100):
                producer.send(TOPIC, b"0 %d" % number)
            await producer.drain()
            for number in range(100, 200):
                producer.send(TOPIC, b"0 %d" % number)
            sent.set()
            await asyncio.sleep(3600)
        threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
        sent.wait()
    """,
        records=200,
    ),
}
