"""Prompts around the input of a generating task, other than the task's own template."""

SHOTS = 3
REQUEST = {
    "synopsis": "Write a synopsis of this software package, in one line of at most ten words:\n{input}",
    "french": "Translate from French to English:\n{input}",
    "german": "Translate from German to English:\n{input}",
}


def few_shot(task, examples):
    """The template filled in with the first training examples, to stand before the template of the question."""
    return "".join(
        task.prompt.format(input=example["input"]) + example["target"] + "\n\n" for example in examples[:SHOTS])


def chat(task, tokenizer, text):
    """What a user would ask the base model, in its own chat format."""
    messages = [{"role": "user", "content": REQUEST[task.name].format(input=text)}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
