"""KServe's SDK in its first protocol: prints what it sees of two models, as JSON."""

import asyncio
import json
import sys

import kserve


async def main(base: str) -> None:
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v1"))
    rows = {"instances": [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]}
    print(json.dumps({
        "live": await client.is_server_live(base),
        "ready": await client.is_model_ready(base, "iris"),
        "predictions": (await client.infer(base, rows, model_name="iris"))["predictions"],
        "texts": (await client.infer(base, {"instances": ["a great film, I loved it"]}, model_name="sentiment"))["predictions"],
    }))  # fmt: skip


asyncio.run(main(sys.argv[1]))
