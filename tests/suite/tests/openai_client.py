"""The official OpenAI client against a server: `python openai_client.py URL MODEL`. Prints `fine` when all is as it expects."""

import sys

import openai

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60)

assert [one.id for one in client.models.list()] == [model]
assert client.models.retrieve(model).id == model

messages = [{"role": "user", "content": "What is the capital of France?"}]
asked = dict(model=model, messages=messages, temperature=0, max_completion_tokens=24)
whole = client.chat.completions.create(**asked, logprobs=True)
text = whole.choices[0].message.content
assert "Paris" in text, text
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
assert whole.choices[0].logprobs.content[0].top_logprobs == []

# The client's own accumulator takes the stream.
with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
    deltas = "".join(event.delta for event in stream if event.type == "content.delta")
    final = stream.get_final_completion()
assert deltas == text == final.choices[0].message.content, deltas
assert final.usage.completion_tokens == whole.usage.completion_tokens

parts = [chunk for chunk in client.chat.completions.create(**asked, stream=True) if chunk.choices]
assert "".join(part.choices[0].delta.content or "" for part in parts) == text
assert all(part.usage is None for part in parts)

said = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0, logprobs=2)
assert "Paris" in said.choices[0].text, said
assert len(said.choices[0].logprobs.tokens) == said.usage.completion_tokens
streamed = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in streamed) == said.choices[0].text


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


error = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="another", messages=messages))
assert error.code == "model_not_found", error
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(**asked, functions=[{"name": "f"}]))
assert error.param == "functions", error
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(**asked, extra_body={"frobnicate": 1}))
assert error.param == "frobnicate", error
long = [{"role": "user", "content": "word " * 20000}]
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=long, stream=True))
assert error.code == "context_length_exceeded", error
print("fine")
