"""Anthropic's official client against two servers, as in `openai_client.py`."""

import json
import re
import sys

import anthropic

url, model, echo_url, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60)
echo = anthropic.Anthropic(base_url=echo_url, api_key=key, max_retries=0, timeout=60)
ECHO = "model.echo"

user = [{"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]}]
# What the client does not know any more goes beside what it knows.
greedy = {"temperature": 0}
asked = dict(model=model, system=[{"type": "text", "text": "Be brief."}], messages=user, extra_body=greedy, max_tokens=24)
whole = client.messages.create(**asked)
text = whole.content[0].text
assert "Paris" in text and whole.type == "message" and whole.role == "assistant", whole
assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 24
counted = client.messages.count_tokens(model=model, system=asked["system"], messages=user)
usage = whole.usage
assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)

# The client's own accumulator takes the stream.
with client.messages.stream(**asked) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert final.content[0].text == text and final.stop_reason == whole.stop_reason
assert final.usage.output_tokens == usage.output_tokens
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
with client.messages.stream(**asked) as stream:
    assert "".join(stream.text_stream) == text
stopped = client.messages.create(**{**asked, "stop_sequences": ["Paris"]})
assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "Paris"
assert client.messages.create(**{**asked, "max_tokens": 1}).stop_reason == "max_tokens"

# Structured output, and a tool that has to be called, by a real model.
schema = {"type": "object", "properties": {"city": {"enum": ["London", "Paris", "Rome"]}, "river": {"type": "boolean"}},
          "required": ["city", "river"], "additionalProperties": False}
where = dict(model=model, messages=[{"role": "user", "content": "Where is the Eiffel Tower?"}], max_tokens=200, extra_body=greedy)
held = client.messages.create(**where, output_config={"format": {"type": "json_schema", "schema": schema}})
assert set(json.loads(held.content[0].text)) == {"city", "river"}, held
tools = [{"name": "remember", "description": "Remembers a place", "input_schema": schema}]
forced = client.messages.create(**where, tools=tools, tool_choice={"type": "tool", "name": "remember"})
assert forced.stop_reason == "tool_use" and set(forced.content[-1].input) == {"city", "river"}, forced

# Tools: what is said calls them, what they give is said again.
call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
asked = dict(model=ECHO, extra_body=greedy, max_tokens=500, tools=[{"name": "weather", "description": "of a city", "input_schema": schema}])
messages = [{"role": "user", "content": call}]
whole = echo.messages.create(**asked, messages=messages)
block = whole.content[-1]
assert whole.stop_reason == "tool_use" and block.type == "tool_use" and block.input == {"city": "Paris"}, whole
with echo.messages.stream(**asked, messages=messages) as stream:
    assert any(event.type == "input_json" for event in stream)
    final = stream.get_final_message()
assert final.content[-1].input == {"city": "Paris"} and final.content[-1].name == "weather", final
cut = echo.messages.create(**asked, messages=messages, stop_sequences=["Paris"])
assert cut.stop_reason == "stop_sequence" and not cut.content, cut
messages += [{"role": "assistant", "content": [one.model_dump() for one in whole.content]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}]}]
answer = echo.messages.create(**asked, messages=messages)
assert "sunny" in answer.content[0].text and answer.stop_reason == "end_turn", answer


# The client's own runner of tools, which goes on without threads when the server says that it keeps none. Beside the tool's answer the model finds what
# was asked, and calls it again: one turn more is enough.
@anthropic.beta_tool
def weather(city: str) -> str:
    """The weather of a city."""
    heard.append(city)
    return "sunny"


heard = []
runner = echo.beta.messages.tool_runner(model=ECHO, max_tokens=500, extra_body=greedy, tools=[weather], messages=messages[:1], max_iterations=2)
told = [message for message in runner]
assert heard[:1] == ["Paris"] and told[0].stop_reason == "tool_use", (heard, told)


def refused(kind, call, word):
    try:
        call()
    except kind as error:
        assert error.request_id, error
        assert error.body["type"] == "error" and error.body["error"]["type"] == word, error.body
        return error
    raise AssertionError(f"expected {kind.__name__}")


hi = [{"role": "user", "content": "Hi"}]
refused(anthropic.NotFoundError, lambda: client.messages.create(model="another", messages=hi, max_tokens=1), "not_found_error")
error = refused(anthropic.BadRequestError, lambda: client.messages.create(model=model, messages=hi, max_tokens=1, extra_body={"frobnicate": 1}), "invalid_request_error")
assert "frobnicate" in str(error), error
image = [{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}]}]
error = refused(anthropic.BadRequestError, lambda: client.messages.create(model=model, messages=image, max_tokens=1), "invalid_request_error")
assert "messages[0].content[0]" in str(error), error
long = [{"role": "user", "content": "word " * 20000}]
error = refused(anthropic.BadRequestError, lambda: client.messages.create(model=model, messages=long, max_tokens=1, stream=True), "invalid_request_error")
assert "prompt is too long" in error.message, error
# Who asks for too much takes the sizes from the error and asks for less.
error = refused(anthropic.BadRequestError, lambda: client.messages.create(model=model, messages=hi, max_tokens=32000), "invalid_request_error")
sizes = re.search(r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+),", error.message)
used, asked_for, context = map(int, sizes.groups())
assert asked_for == 32000, error
fits = client.messages.create(model=model, messages=hi, max_tokens=context - used, stop_sequences=[" "])
assert fits.usage.input_tokens + fits.usage.cache_read_input_tokens == used, (fits, used)
refused(anthropic.BadRequestError, lambda: client.models.list(extra_query={"page": 2}), "invalid_request_error")
refused(anthropic.BadRequestError, lambda: client.messages.create(model=model, messages=hi, max_tokens=1, extra_headers={"anthropic-version": "2001-01-01"}), "invalid_request_error")
refused(anthropic.PermissionDeniedError, lambda: client.messages.create(model=model, messages=hi, max_tokens=1, extra_headers={"Origin": "http://evil.example"}), "permission_error")
assert [one.id for one in client.models.list()] == [model]
assert [one.id for one in client.beta.models.list(limit=1)] == [model]
assert client.models.retrieve(model).type == "model"
refused(anthropic.NotFoundError, lambda: client.models.retrieve("another"), "not_found_error")
refused(anthropic.AuthenticationError, lambda: echo.with_options(api_key="wrong").messages.create(model=ECHO, messages=hi, max_tokens=1), "authentication_error")
refused(anthropic.InternalServerError, lambda: echo.messages.count_tokens(model=ECHO, messages=hi), "api_error")
print("fine")
