"""A proxy that delays: `delay.py LISTEN TARGET MILLISECONDS`. The kernel of the tests has no netem; this stands in for a long
line. It runs on the machine whose port is to be far away, with the port redirected to it."""

from __future__ import annotations

import asyncio
import sys


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Every piece leaves as long after it came as the line is long; pieces overlap, none overtakes another."""
    line: asyncio.Queue = asyncio.Queue(1024)
    loop = asyncio.get_running_loop()

    async def arrive() -> None:
        while piece := await reader.read(65536):
            await line.put((loop.time() + delay, piece))
        await line.put((loop.time() + delay, b""))

    arriving = asyncio.create_task(arrive())
    try:
        while True:
            due, piece = await line.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.write_eof()
    except (OSError, RuntimeError):
        pass
    finally:
        arriving.cancel()


async def main() -> None:
    (host, port), (to, at) = (address.rsplit(":", 1) for address in sys.argv[1:3])
    delay = float(sys.argv[3]) / 1000

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(to, int(at))
        except OSError:
            writer.close()
            return
        await asyncio.gather(pump(reader, back, delay), pump(there, writer, delay), return_exceptions=True)
        back.close()
        writer.close()

    server = await asyncio.start_server(serve, host, int(port))
    print("listening", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
