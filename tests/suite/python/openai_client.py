"""The official OpenAI client against two servers: `python openai_client.py URL MODEL ECHO KEY`, the second one of a model that says
the last message again, by that key. Prints `fine` when all is as it expects."""

import json
import math
import sys
from typing import Literal

import openai
from pydantic import BaseModel

url, model, echo_url, key = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
echo = openai.OpenAI(base_url=f"{echo_url}/v1", api_key=key, max_retries=0, timeout=60)
ECHO = "model.echo"

assert [one.id for one in client.models.list()] == [model]
assert client.models.retrieve(model).id == model

# Chat, whole, and by the client's own accumulator.
messages = [{"role": "user", "content": "What is the capital of France?"}]
asked = dict(model=model, messages=messages, temperature=0, max_completion_tokens=24)
whole = client.chat.completions.create(**asked, logprobs=True)
text = whole.choices[0].message.content
assert "Paris" in text, text
assert whole.choices[0].finish_reason in ("stop", "length")
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
assert whole.choices[0].logprobs.content[0].top_logprobs == []

with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
    deltas = "".join(event.delta for event in stream if event.type == "content.delta")
    final = stream.get_final_completion()
assert deltas == text == final.choices[0].message.content, deltas
assert final.usage.completion_tokens == whole.usage.completion_tokens

parts = [chunk for chunk in client.chat.completions.create(**asked, stream=True) if chunk.choices]
assert "".join(part.choices[0].delta.content or "" for part in parts) == text
assert all(part.usage is None for part in parts)

# Choices begin in order, whichever speaks first: the accumulator appends them.
for _ in range(4):
    with client.chat.completions.stream(model=model, messages=messages, n=4, seed=7, max_completion_tokens=4) as stream:
        deltas = [event.chunk.choices[0] for event in stream if event.type == "chunk" and event.chunk.choices]
        final = stream.current_completion_snapshot
    assert [delta.index for delta in deltas if delta.delta.role] == [0, 1, 2, 3], deltas
    assert [choice.index for choice in final.choices] == [0, 1, 2, 3], final
    for choice in final.choices:
        said = "".join(delta.delta.content or "" for delta in deltas if delta.index == choice.index)
        assert choice.message.content == said, (choice, said)

# Completions.
said = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0, logprobs=2)
assert "Paris" in said.choices[0].text, said
assert len(said.choices[0].logprobs.tokens) == said.usage.completion_tokens
streamed = client.completions.create(model=model, prompt="The capital of France is", max_tokens=6, temperature=0, stream=True)
assert "".join(part.choices[0].text for part in streamed) == said.choices[0].text

# Embeddings: the client asks for base64 unless told otherwise, and decodes it.
one = client.embeddings.create(model=model, input="The sky is blue")
listed = client.embeddings.create(model=model, input=["The sky is blue", [504, 3575]], encoding_format="float")
vector = one.data[0].embedding
assert vector == listed.data[0].embedding or max(abs(a - b) for a, b in zip(vector, listed.data[0].embedding)) < 1e-6
assert abs(math.sqrt(sum(value * value for value in vector)) - 1) < 1e-3
assert [item.index for item in listed.data] == [0, 1] and listed.usage.prompt_tokens == one.usage.prompt_tokens + 2

# Responses, whole, by events, and by the client's own accumulator.
asked = dict(model=model, input="What is the capital of France?", instructions="Be brief.", temperature=0, max_output_tokens=24)
response = client.responses.create(**asked, include=["message.output_text.logprobs"])
assert "Paris" in response.output_text, response
assert response.status in ("completed", "incomplete") and response.usage.output_tokens <= 24
assert len(response.output[0].content[0].logprobs) == response.usage.output_tokens
kinds = []
deltas = ""
numbers = []
for event in client.responses.create(**asked, stream=True):
    kinds.append(event.type)
    numbers.append(event.sequence_number)
    if event.type == "response.output_text.delta":
        deltas += event.delta
assert deltas == response.output_text, deltas
assert numbers == list(range(len(numbers)))
ends = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"], kinds
assert kinds[-4:] == [*ends, f"response.{response.status}"], kinds
with client.responses.stream(**{**asked, "max_output_tokens": 200}) as stream:
    for event in stream:
        pass
    final = stream.get_final_response()
assert final.status == "completed" and "Paris" in final.output_text
again = client.responses.create(model=model, temperature=0, max_output_tokens=8, input=[
    {"role": "user", "content": "What is the capital of France?"}, *final.output, {"role": "user", "content": "And of Italy?"}])
assert again.output_text and again.usage.input_tokens > final.usage.input_tokens
cut = client.responses.create(model=model, input="Count to a hundred.", max_output_tokens=3)
assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"

# Structured output, into the caller's own types.
class Place(BaseModel):
    city: Literal["London", "Paris", "Rome"]
    river: bool


messages = [{"role": "user", "content": "Where is the Eiffel Tower?"}]
parsed = client.chat.completions.parse(model=model, messages=messages, response_format=Place, temperature=0, max_completion_tokens=200)
place = parsed.choices[0].message.parsed
assert isinstance(place, Place) and place.city, parsed
with client.chat.completions.stream(model=model, messages=messages, response_format=Place, temperature=0, max_completion_tokens=200) as stream:
    assert stream.get_final_completion().choices[0].message.parsed == place
response = client.responses.parse(model=model, input="Where is the Eiffel Tower?", text_format=Place, temperature=0, max_output_tokens=200)
assert isinstance(response.output_parsed, Place), response

# A tool that has to be called, by a real model: its arguments follow the schema.
tool = openai.pydantic_function_tool(Place, name="remember", description="Remembers a place")
required = client.chat.completions.parse(model=model, messages=messages, tools=[tool], tool_choice="required", parallel_tool_calls=False, temperature=0, max_completion_tokens=200)
called = required.choices[0].message.tool_calls[0].function
assert called.name == "remember" and isinstance(called.parsed_arguments, Place), required

# Tools: what is said calls them, what they give is said again.
call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
tools = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": schema}}]
asked = dict(model=ECHO, temperature=0, tools=tools)
messages = [{"role": "user", "content": call}]
whole = echo.chat.completions.create(**asked, messages=messages)
assert whole.choices[0].finish_reason == "tool_calls", whole
called = whole.choices[0].message.tool_calls[0]
assert called.function.name == "weather" and json.loads(called.function.arguments) == {"city": "Paris"}
with echo.chat.completions.stream(**asked, messages=messages) as stream:
    done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    final = stream.get_final_completion()
assert [one.name for one in done] == ["weather"] and json.loads(done[0].arguments) == {"city": "Paris"}
assert final.choices[0].message.tool_calls[0].function.arguments == called.function.arguments
# A call that a stop text cuts is none.
cut = echo.chat.completions.create(**asked, messages=messages, stop=["Paris"])
assert cut.choices[0].finish_reason == "stop" and not cut.choices[0].message.tool_calls, cut
assert "a call is left out" in cut.backplane["notice"], cut
messages += [whole.choices[0].message.model_dump(),
             {"role": "tool", "tool_call_id": called.id, "content": "sunny"}]
assert echo.chat.completions.create(**asked, messages=messages).choices[0].message.content.count("sunny") == 1

asked = dict(model=ECHO, temperature=0, tools=[{"type": "function", "name": "weather", "parameters": schema, "strict": True}])
response = echo.responses.create(**asked, input=call)
item = response.output[-1]
assert item.type == "function_call" and json.loads(item.arguments) == {"city": "Paris"}, response
with echo.responses.stream(**asked, input=call) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
assert "response.function_call_arguments.delta" in kinds and "response.function_call_arguments.done" in kinds
assert json.loads(final.output[-1].arguments) == {"city": "Paris"}
# Items come back as they are, and as the client dumps them.
for items in [final.output, [one.model_dump() for one in final.output]]:
    answer = echo.responses.create(**asked, input=[
        {"role": "user", "content": call}, *items,
        {"type": "function_call_output", "call_id": final.output[-1].call_id, "output": "sunny"}])
    assert "sunny" in answer.output_text, answer


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert error.request_id or error.body, error
        return error
    raise AssertionError(f"expected {kind.__name__}")


# Errors are the client's own exceptions.
messages = [{"role": "user", "content": "Hi"}]
error = refused(openai.NotFoundError, lambda: client.chat.completions.create(model="another", messages=messages))
assert error.code == "model_not_found", error
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=messages, extra_body={"frobnicate": 1}))
assert error.param == "frobnicate", error
error = refused(openai.BadRequestError, lambda: client.responses.create(model=model, input="x", previous_response_id="resp_1"))
assert error.param == "previous_response_id", error
error = refused(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="x", dimensions=7))
assert error.param == "dimensions", error
long = [{"role": "user", "content": "word " * 20000}]
for stream in (False, True):
    error = refused(openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=long, stream=stream))
    assert error.code == "context_length_exceeded", error
foreign = client.with_options(default_headers={"Origin": "http://evil.example"})
refused(openai.PermissionDeniedError, lambda: foreign.models.list())
refused(openai.AuthenticationError, lambda: echo.with_options(api_key="wrong").models.list())
refused(openai.InternalServerError, lambda: echo.embeddings.create(model=ECHO, input="x"))
busy = [echo.completions.create(model=ECHO, prompt="x" * 1000, n=128, max_tokens=1000, stream=True) for _ in range(2)]
error = refused(openai.RateLimitError, lambda: echo.chat.completions.create(model=ECHO, messages=messages))
assert error.response.headers["retry-after"], error
for stream in busy:
    stream.close()
print("fine")
