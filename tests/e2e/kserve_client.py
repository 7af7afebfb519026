"""One inference with KServe's SDK over REST and one over gRPC, with TLS and a token: prints the labels of both."""

import asyncio
import json
import ssl
import sys

import kserve
import numpy as np

FLOWER = np.array([[5.1, 3.5, 1.4, 0.2]], dtype=np.float32)


def asked() -> kserve.InferRequest:
    tensor = kserve.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(FLOWER, binary_data=False)
    return kserve.InferRequest(model_name="iris", infer_inputs=[tensor])


def label(answer: kserve.InferResponse) -> list[int]:
    (output,) = (output for output in answer.outputs if output.name == "label")
    return output.as_numpy().ravel().tolist()


async def main(address: str, ca: str, token: str) -> None:
    bearer = {"authorization": f"Bearer {token}"}
    rest = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", verify=ssl.create_default_context(cafile=ca)))
    answers = [await rest.infer(f"https://{address}", asked(), model_name="iris", headers=bearer)]
    grpc = kserve.InferenceGRPCClient(address, use_ssl=True, root_certificates=ca)
    answers.append(await grpc.infer(asked(), headers=list(bearer.items())))
    await grpc.close()
    print(json.dumps([label(answer) for answer in answers]))


asyncio.run(main(*sys.argv[1:]))
