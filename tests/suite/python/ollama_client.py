"""Ollama's official client against two servers, as in `openai_client.py`."""

import math
import sys
from typing import Literal

import ollama
from pydantic import BaseModel

url, model, echo_url, key = sys.argv[1:]
client = ollama.Client(host=url, timeout=60)
echo = ollama.Client(host=echo_url, timeout=60, headers={"Authorization": f"Bearer {key}"})
ECHO = "model.echo"

listed = client.list().models
assert [one.model for one in listed] == [model] and listed[0].size > 0 and listed[0].modified_at.year >= 2020, listed
assert listed[0].details.family == "llama" and listed[0].details.format == "gguf", listed
shown = client.show(model)
assert "completion" in shown.capabilities and "embedding" in shown.capabilities, shown
assert shown.modelinfo["general.architecture"] == "llama" and shown.details.parameter_size, shown
running = client.ps().models
assert running[0].name == model and running[0].context_length > 0, running

user = [{"role": "user", "content": "What is the capital of France?"}]
asked = dict(model=f"{model}:latest", messages=user, options={"temperature": 0, "num_predict": 24, "num_ctx": 1024, "seed": 1})
whole = client.chat(**asked)
text = whole.message.content
assert "Paris" in text and whole.done and whole.done_reason in ("stop", "length"), whole
assert whole.eval_count <= 24 and whole.prompt_eval_count > 0 and whole.total_duration >= whole.eval_duration > 0, whole
parts = list(client.chat(**asked, stream=True, logprobs=True))
assert "".join(part.message.content for part in parts) == text
assert [part.done for part in parts[:-1]] == [False] * (len(parts) - 1) and parts[-1].eval_count == whole.eval_count
assert sum(len(part.logprobs or []) for part in parts) == whole.eval_count

said = client.generate(model=model, system="Be brief.", prompt="What is the capital of France?", options={"temperature": 0, "num_predict": 24})
assert "Paris" in said.response and said.done_reason, said
raw = client.generate(model=model, prompt="The capital of France is", raw=True, options={"temperature": 0, "num_predict": 6})
parts = client.generate(model=model, prompt="The capital of France is", raw=True, stream=True, options={"temperature": 0, "num_predict": 6})
assert "Paris" in raw.response and "".join(part.response for part in parts) == raw.response, raw
assert client.generate(model=model, keep_alive="1h").done_reason == "load"

many = client.embed(model=model, input=["The sky is blue", "Grass is green"])
assert len(many.embeddings) == 2 and many.prompt_eval_count > 4
# Token ids stand where texts may, with nothing around them.
ids = client._client.post("/api/embed", json={"model": model, "input": [[504, 6376], [314]]}).json()
assert len(ids["embeddings"]) == 2 and ids["prompt_eval_count"] == 3, ids
short = client.embed(model=model, input="The sky is blue", dimensions=16).embeddings[0]
assert len(short) == 16 and abs(math.sqrt(sum(value * value for value in short)) - 1) < 1e-3
# Whole numbers may be written as others are; what is too long is cut unless that is forbidden.
floats = dict(model=model, prompt="The capital of France is", raw=True)
floating = client.generate(**floats, options={"temperature": 0, "num_predict": 6.0, "seed": 1.0, "top_k": 40.0, "num_ctx": 512.0, "repeat_last_n": -1.0})
assert floating.response == raw.response and floating.eval_count <= 6, floating
long = "The sky is blue. " * 3000
assert client.embed(model=model, input=["The sky is blue", "Grass is green"], truncate=True).embeddings == many.embeddings
assert client.embed(model=model, input=["The sky is blue", "Grass is green"], truncate=False).embeddings == many.embeddings
cut = client.embed(model=model, input=[long, "Grass is green"], keep_alive=600.0)
assert cut.embeddings[1] == many.embeddings[1] and cut.prompt_eval_count > 1000, cut.prompt_eval_count
assert client.embed(model=model, input=long, truncate=True).embeddings[0] == cut.embeddings[0]
for nothing in ([], ""):
    empty = client.embed(model=model, input=nothing)
    assert list(empty.embeddings) == [] and empty.model == model, empty
assert client.embed(model=model, input="The sky is blue", dimensions=0).embeddings[0] == many.embeddings[0]
assert client.embeddings(model=model, prompt="The sky is blue").embedding == many.embeddings[0]

# Structured output.
class Place(BaseModel):
    city: Literal["London", "Paris", "Rome"]
    river: bool


where = [{"role": "user", "content": "Where is the Eiffel Tower?"}]
held = client.chat(model=model, messages=where, format=Place.model_json_schema(), options={"temperature": 0, "num_predict": 200})
assert Place.model_validate_json(held.message.content).city, held
loose = client.generate(model=model, prompt="A city, as JSON.", format="json", options={"temperature": 0, "num_predict": 60})
assert loose.response.lstrip().startswith("{"), loose

# Tools: what is said calls them, what they give is said again.
call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def weather(city: str) -> str:
    """Weather of a city.

    Args:
        city: the city
    """
    return "sunny"


messages = [{"role": "user", "content": call}]
whole = echo.chat(model=ECHO, messages=messages, tools=[weather], options={"temperature": 0})
called = whole.message.tool_calls[0].function
assert called.name == "weather" and called.arguments == {"city": "Paris"}, whole
parts = list(echo.chat(model=ECHO, messages=messages, tools=[weather], options={"temperature": 0}, stream=True))
assert [part.message.tool_calls[0].function.arguments for part in parts if part.message.tool_calls] == [{"city": "Paris"}]
messages += [whole.message, {"role": "tool", "tool_name": "weather", "content": weather(**called.arguments)}]
assert echo.chat(model=ECHO, messages=messages, tools=[weather], options={"temperature": 0}).message.content.count("sunny") == 1


def refused(status, call):
    try:
        for _ in call():
            pass
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        assert error.error and not error.error.startswith("{"), error
        return error
    raise AssertionError(f"expected {status}")


refused(404, lambda: client.chat(model="another", messages=user))
assert "/api/pull" in refused(404, lambda: client.pull("another")).error
assert "top_k" in refused(400, lambda: client.chat(model=model, messages=user, options={"top_k": "x"})).error
assert "num_ctx" in refused(400, lambda: client.chat(model=model, messages=user, options={"num_ctx": 1 << 20}, stream=True)).error
for wrong in ({"num_predict": 2.5}, {"seed": 0.5}, {"num_predict": -3.0}, {"num_predict": 1e300}, {"seed": "1"}):
    assert list(wrong)[0] in refused(400, lambda: client.chat(model=model, messages=user, options=wrong)).error
refused(400, lambda: client.embed(model=model, input=long, truncate=False))
refused(400, lambda: client.embed(model=model, input="x", dimensions=1 << 20))
refused(400, lambda: client.chat(model=model, messages=user, keep_alive="soon"))
assert "mirostat" in refused(400, lambda: client.generate(model=model, prompt="x", options={"mirostat": 1})).error
refused(400, lambda: client.chat(model=model, messages=[{"role": "user", "content": "word " * 20000}], stream=True))
refused(401, lambda: ollama.Client(host=echo_url).embed(model=ECHO, input="x"))
refused(500, lambda: echo.embed(model=ECHO, input="x"))
print("fine")
