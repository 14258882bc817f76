"""Random JSON schemas against a server of a model of random weights: `python grammar_fuzz.py ADDRESS MODEL`. Whatever the model
says, it parses and an independent validator takes it. Prints `fine` at the end."""

import concurrent.futures
import json
import random
import sys
import urllib.request

import jsonschema_rs

address, model = sys.argv[1:]
COUNT = 300


def schema(dice, depth, defs):
    kinds = ["string", "integer", "boolean", "null", "enum", "const"]
    if depth > 0:
        kinds += ["object", "object", "array", "anyOf"] + (["ref"] if defs else [])
    kind = dice.choice(kinds)
    if kind == "string":
        least = dice.randint(0, 3)
        return dice.choice([
            {"type": "string", "minLength": least, "maxLength": least + dice.randint(0, 6)},
            {"type": "string", "pattern": dice.choice(["^[a-c]{1,4}$", "^(x|yy)-[0-9]{2}$", "^[^b]{0,3}$"])},
            {"type": "string", "format": dice.choice(["date", "ipv4", "uuid"])},
        ])
    if kind == "integer":
        least = dice.randint(-200, 200)
        return {"type": "integer", "minimum": least, "maximum": least + dice.randint(0, 500)}
    if kind == "enum":
        return {"enum": dice.sample([1, -2.5, "a", "é😀\"\\", None, True, [1, "b"], {"k": [None]}], dice.randint(1, 4))}
    if kind == "const":
        return {"const": dice.choice(["</tool_call>", 0, "\n\t", {"a": {"b": []}}])}
    if kind == "object":
        names = dice.sample(["a", "b c", "é", "\"q\"", "a/b~c", ""], dice.randint(0, 3))
        properties = {name: schema(dice, depth - 1, defs) for name in names}
        return {"type": "object", "properties": properties, "additionalProperties": False,
                "required": [name for name in names if dice.random() < 0.7]}
    if kind == "array":
        least = dice.randint(0, 2)
        items = schema(dice, depth - 1, defs)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + dice.randint(0, 2)}
    if kind == "anyOf":
        return {"anyOf": [schema(dice, depth - 1, defs) for _ in range(dice.randint(1, 3))]}
    if kind == "ref":
        return {"$ref": "#/$defs/" + dice.choice(defs)}
    return {"type": kind}


def case(seed):
    dice = random.Random(seed)
    root = schema(dice, 3, ["one", "two"])
    root = {"anyOf": [root]} if "$ref" in root else root
    # One by way of the other, in either order.
    defs = {"one": schema(dice, 1, ["two"]), "two": schema(dice, 0, [])}
    names = dice.sample(list(defs), 2)
    return {**root, "$defs": {name: defs[name] for name in names}}


def check(seed):
    asked = case(seed)
    body = {"model": model, "prompt": "x", "grammar": {"json_schema": asked}, "temperature": 1 + seed % 3, "top_k": 0,
            "top_p": 1, "min_p": 0, "seed": seed, "max_tokens": 700}
    request = urllib.request.Request(f"http://{address}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            choice = json.load(answer)["choices"][0]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{asked}: {error.read()}") from None
    if choice["finish_reason"] == "length":
        return False
    value = json.loads(choice["text"])
    validator = jsonschema_rs.validator_for(asked, validate_formats=True)
    wrong = [str(error) for error in validator.iter_errors(value)]
    assert not wrong, f"{asked}: {choice['text']}: {wrong}"
    return True


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    whole = sum(pool.map(check, range(COUNT)))
print(f"{whole} of {COUNT} texts came to their end")
assert whole > COUNT * 0.8
print("fine")
