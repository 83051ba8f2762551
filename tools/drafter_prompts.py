"""Training prompts in the kinds of task that Spec-Bench has, none of them from Spec-Bench.

Everything is written here as templates and word lists, or cut from free text that comes in packages (`Passages`).
`build` draws prompts from a seed; `overlaps` tells whether a prompt shares a run of words with a held-out one, and
such prompts are dropped. The forms of the tasks (`Translate German to English:`, `Summarize:`, a passage and then a
question) are Spec-Bench's on purpose: a drafter should know the form of what it will be asked.
"""

# ruff: noqa: E501  (a template is one line)
from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from drafter_words import (
    CODE_TASKS,
    COUNTRIES,
    FACT_QUESTIONS,
    GERMAN,
    GOODS,
    HUMANITIES,
    LANGUAGES,
    NAMES,
    OPENINGS,
    PLACES,
    PROFESSIONS,
    SCIENCE,
    THINGS,
)

RUN = 8  # words in a row that count as overlap with a held-out prompt


@dataclass(frozen=True)
class Passages:
    """Free text by paragraph."""

    texts: list[str]

    def one(self, luck: random.Random, words: int) -> str:
        """About `words` words: whole paragraphs from one place, cut at a sentence where possible."""
        start = luck.randrange(len(self.texts))
        text = " ".join(self.texts[start : start + 6])
        cut = " ".join(text.split()[:words])
        end = max(cut.rfind(mark) for mark in (". ", "? ", "! "))
        return cut[: end + 1] if end > len(cut) // 2 else cut


def passages(folders: Iterable[Path]) -> Passages:
    """Every paragraph of 30 to 400 words in the .txt and .html files under the folders, in the order of their names."""
    texts: list[str] = []
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".html")):
            texts += _paragraphs(path)
    return Passages(texts)


def _paragraphs(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="ignore")
    if path.suffix == ".html":
        text = re.sub(r"(?s)<(script|style|pre|svg).*?</\1>", " ", text)
        text = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"</?(p|li|h\d|div|tr|td)\b[^>]*>", "\n\n", text)))
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text))
    return [block for block in blocks if 30 <= len(block.split()) <= 400]


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def held_out_runs(path: Path) -> set[tuple[str, ...]]:
    """Every run of RUN words in a JSON-lines file of prompts (`turns`); a shorter prompt counts whole."""
    runs: set[tuple[str, ...]] = set()
    for line in path.read_text().splitlines():
        for turn in json.loads(line)["turns"]:
            runs |= _runs(words_of(turn))
    return runs


def overlaps(prompt: str, runs: set[tuple[str, ...]]) -> bool:
    """Whether the prompt shares RUN words in a row with a held-out prompt, or is a shorter one word for word."""
    return not runs.isdisjoint(_runs(words_of(prompt)))


def _runs(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


Kind = Callable[[random.Random, Passages], str]


def _translation(luck: random.Random, _: Passages) -> str:
    subject, verb, rest, end = (luck.choice(GERMAN[part]) for part in ("subject", "verb", "rest", "end"))
    sentence = f"{subject} {verb} {rest} {end} ."
    if luck.random() < 0.4:
        more = [luck.choice(GERMAN[part]) for part in ("subject", "verb", "rest", "end")]
        joint = luck.choice([" , und ", " , aber ", " , denn "])
        sentence = f"{sentence[:-2]}{joint}{more[0][0].lower() + more[0][1:]} {' '.join(more[1:])} ."
    return f"Translate German to English: {sentence}"


def _summarization(luck: random.Random, free: Passages) -> str:
    return f"Summarize: {free.one(luck, luck.choice([80, 120, 160, 220, 300]))}"


def _rag(luck: random.Random, free: Passages) -> str:
    passage = free.one(luck, luck.choice([90, 140, 200, 280, 360]))
    words = re.findall(r"[A-Za-z]{5,}", passage) or ["this"]
    word, other = luck.choice(words), luck.choice(words)
    question = luck.choice(
        [
            f"What is {word}?",
            f"What does the text say about {word}?",
            f"How is {word} related to {other}?",
            f"Why is {word} important?",
            "What is the main point of this text?",
            f"Who or what is described as {word}?",
            f"When did this happen, and what was the role of {word}?",
            f"Which reasons are given for {word}?",
            f"Describe the various aspects of {word}.",
        ]
    )
    return f"{passage}\n{question}"


def _qa(luck: random.Random, _: Passages) -> str:
    question = luck.choice(FACT_QUESTIONS)
    fill = {
        "country": luck.choice(COUNTRIES),
        "place": luck.choice(PLACES),
        "thing": luck.choice(THINGS),
        "science": luck.choice(SCIENCE),
        "topic": luck.choice(HUMANITIES),
        "name": luck.choice(NAMES),
        "job": luck.choice(PROFESSIONS),
    }
    return question.format(**fill)


def _math_reasoning(luck: random.Random, _: Passages) -> str:
    a, b, c = (luck.randint(2, 60) for _ in range(3))
    one, two = luck.sample(NAMES, 2)
    thing, other = luck.sample(GOODS, 2)
    percent, price = luck.choice([10, 15, 20, 25, 30, 40, 60, 75]), luck.choice([2, 3, 4, 5, 8, 12, 15, 24, 60])
    return luck.choice(
        [
            f"{one} has {a + b} {thing} and gives {b} of them to {two}. Then {one} buys {c} more. How many {thing} does {one} have now?",
            f"A shop sells {thing} for ${price} each. {one} buys {a} {thing} and pays with ${price * a + b}. How much change does {one} get?",
            f"{one} reads {a} pages on Monday, twice as many on Tuesday, and {b} pages on Wednesday. How many pages did {one} read in total?",
            f"There are {a} boxes with {b} {thing} in each. If {c} {thing} are broken, how many are left?",
            f"{one} earns ${price} an hour and works {a} hours a week. After {luck.randint(2, 9)} weeks, {one} spends ${b} on {thing}. How much money is left?",
            f"A train travels {a * 10} miles in {luck.randint(2, 9)} hours. At the same speed, how far does it travel in {b} hours?",
            f"{one} buys {a} {thing} at ${price} each and {b} {other} at ${price + 1} each. There is a {percent}% discount on the total. How much does {one} pay?",
            f"{one} is {a} years old. {two} is {luck.randint(2, 4)} times as old as {one}. How old will {two} be in {b} years?",
            f"In a class of {a + 20} students, {percent}% like {thing}. The rest like {other}. How many students like {other}?",
            f"{one} wants to save ${a * 50}. {one} saves ${price} every day and already has ${b}. How many days will it take?",
            f"A farmer has {a} rows of trees with {b} trees in each row. Every tree gives {c} {thing}. He sells each for ${price}. How much does he earn?",
            f"{one} and {two} collected {a + b + c} {thing} together. {one} collected {a} more than {two}. How many did {two} collect?",
            f"A recipe needs {luck.randint(2, 9)} cups of flour for {a} cookies. How many cups are needed for {a * luck.randint(2, 6)} cookies?",
            f"{one} runs {luck.randint(2, 9)} miles every day from Monday to Friday and {b} miles on Saturday. How many miles is that in {luck.randint(2, 6)} weeks?",
        ]
    )


def _math(luck: random.Random, _: Passages) -> str:
    a, b, c, d, n = (luck.randint(1, 30) for _ in range(5))
    return luck.choice(
        [
            f"Solve the equation {a}x + {b} = {c * a + b}. Show your steps.",
            f"What is the area of a rectangle with sides {a} and {b}?",
            f"The vertices of a square are at ({a}, {b}), ({a}, {b + n}), ({a + n}, {b + n}) and ({a + n}, {b}). What is its perimeter?",
            f"If f(x) = {a}x^2 - {b}x + {c}, find the value of f({luck.randint(-5, 5)}).",
            f"When rolling two dice, what is the probability that the sum is at least {luck.randint(3, 11)}?",
            f"What is the remainder when {a * b + c} is divided by {max(2, d)}?",
            f"Find the derivative of f(x) = {a}x^3 + {b}x^2 + {c}.",
            f"A bag holds {a} red, {b} blue and {c} green balls. What is the probability of drawing a red one?",
            f"Simplify the expression ({a}x + {b})(x - {c}).",
            f"What is {a}% of {b * 10}?",
            f"What is the sum of the first {a + 3} positive integers? Explain how you got it.",
            f"Solve for x: |x - {a}| < {b}. How many integers satisfy it?",
            f"Compute {a} * {b} + {c} - {d} and explain each step.",
            f"Find the least common multiple and the greatest common divisor of {a + 1} and {b + 1}.",
        ]
    )


def _writing(luck: random.Random, _: Passages) -> str:
    name, place, thing = luck.choice(NAMES), luck.choice(PLACES), luck.choice(THINGS)
    topic, job, opening = luck.choice(HUMANITIES + SCIENCE), luck.choice(PROFESSIONS), luck.choice(OPENINGS)
    return luck.choice(
        [
            f"Write a short story about {thing} in {place}.",
            f"Write a travel guide for {place} with things to see and to eat.",
            f"Write an email to your {luck.choice(['boss', 'landlord', 'teacher', 'neighbor', 'team'])} about {thing}. Keep it short and polite.",
            f"Write a persuasive essay about {topic}.",
            f"Write a poem about {thing} and {luck.choice(THINGS)}.",
            f"Describe {place} in the {luck.choice(['spring', 'summer', 'autumn', 'winter'])} using vivid language.",
            f"Draft a blog post about {topic} for beginners. Use headings.",
            f"Write a product description for {thing}.",
            f"Begin a story with this sentence: {opening}",
            f"Write a speech that {name}, a {job}, gives about {topic}.",
            f"Write a review of {luck.choice(['a restaurant', 'a hotel', 'a museum', 'a concert', 'a novel', 'a film'])} in {place}.",
            f"Compose a letter from {name} to a friend who moved to {place}.",
            f"Write a dialogue between a {job} and {name} about {thing}.",
            f"Give me an outline for an article about {topic}.",
            f"Write a headline and a first paragraph for a news article about {topic}.",
            f"Rewrite this sentence in a formal style: {opening}",
            f"Create a character who is a {job} and loves {thing}. Describe the character in two paragraphs.",
            f"Write a thank-you note to a {job} for help with {thing}.",
            f"Suggest five titles for a book about {topic}.",
            f"Write a limerick about a {job} from {place}.",
        ]
    )


def _roleplay(luck: random.Random, _: Passages) -> str:
    job, thing, topic, place = (luck.choice(part) for part in (PROFESSIONS, THINGS, SCIENCE + HUMANITIES, PLACES))
    return luck.choice(
        [
            f"You are a {job}. Explain to a customer why {thing} matters.",
            f"Act as a {job}. I will ask for advice, and you answer from your experience. My first question is about {topic}.",
            f"Pretend to be a {job} from {place}. Introduce yourself and talk about your day.",
            f"Imagine that you are {thing} that can talk. What would you say?",
            f"Take the role of a tour guide in {place}. Start the tour.",
            f"You are a pirate captain who knows a lot about {topic}. Explain it to your crew.",
            f"Play the part of a {job} in an interview. The first question is: what do you think of {topic}?",
            f"As a {job}, write a list of tips about {thing}.",
            f"Assume the role of a teacher. Explain {topic} to ten-year-old children.",
            f"You are a detective in {place}. {luck.choice(OPENINGS)} What do you do next?",
        ]
    )


def _reasoning(luck: random.Random, _: Passages) -> str:
    one, two, three = luck.sample(NAMES, 3)
    thing, other, third = luck.sample(GOODS, 3)
    n, job = luck.randint(2, 9), luck.choice(PROFESSIONS)
    return luck.choice(
        [
            f"{one} is taller than {two}, and {two} is taller than {three}. Who is the shortest? Explain.",
            f"{one} is the mother of {two}, and {two} is the sister of {three}. How is {one} related to {three}?",
            f"{one} has {n} brothers. Each brother has {n - 1} sisters. How many sisters does {one} have?",
            f"Which word does not belong with the others: {thing}, {other}, {third}, mountain? Explain why.",
            f"If all {thing} are {other} and some {other} are {third}, are all {thing} {third}? Explain your reasoning.",
            f"A {job} goes to work every night and sleeps during the day. What could be the reasons?",
            f"One morning {one} stood facing the sun. {two} stood behind. In which direction did the shadow of {two} point?",
            f"There are {n + 2} people in a room and each shakes hands with every other. How many handshakes are there?",
            f"{one} put {thing} in a box and left. {two} moved them to a bag. Where will {one} look for them, and why?",
            f"In a queue {one} is {n}th from the front and {n + 1}th from the back. How many people are in the queue?",
            f"{one}, {two} and {three} own {thing}, {other} and {third}. {one} does not own {thing}. {two} owns {third}. Who owns what?",
            f"What would happen if there were no {thing} in the world? Think step by step.",
        ]
    )


def _coding(luck: random.Random, _: Passages) -> str:
    task = luck.choice(CODE_TASKS)
    return luck.choice(
        [
            f"Write a {luck.choice(LANGUAGES)} function to {task}.",
            f"Write a {luck.choice(LANGUAGES)} program that can {task}.",
            f"How do I {task} in {luck.choice(LANGUAGES)}? Give an example with comments.",
            f"Implement a function to {task}. Explain how it works and its complexity.",
            f"Write a function to {task} and add tests.",
        ]
    )


def _extraction(luck: random.Random, free: Passages) -> str:
    passage = free.one(luck, luck.choice([60, 90, 130, 180]))
    people = luck.sample(NAMES, 3)
    rows = "\n".join(
        f"{mark}) {name}, a {luck.choice(PROFESSIONS)} from {luck.choice(PLACES)}, bought {luck.choice(GOODS)} for ${luck.randint(3, 300)} in {luck.randint(1980, 2024)}."
        for mark, name in zip("abc", people, strict=True)
    )
    return luck.choice(
        [
            f"Extract the names, the jobs and the places from the following sentences. Output in JSON format.\n{rows}",
            f"Turn the following sentences into a table with the columns name, place, price, year.\n{rows}",
            f"Which person in the following sentences paid the most? Answer with the name and the price.\n{rows}",
            f"List the named entities (people, organizations, locations) in this text as a JSON dictionary.\n\n{passage}",
            f"List the most important facts of the following text as bullet points.\n\n{passage}",
            f"Identify the main topic and three keywords of this text. Return them as JSON.\n\n{passage}",
            f"Count how often the word 'the' appears in this text.\n\n{passage}",
            f"Rate each of these reviews from 1 to 5 and return a JSON array of integers.\n1. The {luck.choice(GOODS)} were wonderful.\n2. I did not like the {luck.choice(GOODS)} at all.\n3. The {luck.choice(GOODS)} were fine, but too expensive.",
        ]
    )


def _stem(luck: random.Random, _: Passages) -> str:
    topic, other = luck.sample(SCIENCE, 2)
    return luck.choice(
        [
            f"What is {topic}, and how does it work?",
            f"Explain {topic} in simple words.",
            f"How does {topic} relate to {other}?",
            f"Describe the main steps of {topic} and give an example.",
            f"What are the advantages and disadvantages of {topic}?",
            f"Which experiment shows {topic}? Describe it.",
            f"What are common mistakes when people think about {topic}?",
            f"How would an engineer make use of {topic}?",
            f"Compare {topic} and {other}.",
            f"Why is {topic} important for modern technology?",
        ]
    )


def _humanities(luck: random.Random, _: Passages) -> str:
    topic, other = luck.sample(HUMANITIES, 2)
    return luck.choice(
        [
            f"Explain {topic} and its effects on society.",
            f"What were the causes of {topic}?",
            f"Discuss the relation between {topic} and {other}. Give examples.",
            f"How did {topic} change the lives of ordinary people?",
            f"Give an overview of {topic} with three key points.",
            f"Create a lesson plan about {topic} for high-school students.",
            f"What are the strongest arguments for and against {topic}?",
            f"Compare how {luck.choice(COUNTRIES)} and {luck.choice(COUNTRIES)} deal with {topic}.",
            f"Name five books or ideas that help to understand {topic}, and say why.",
            f"Write a short analysis of {topic} for a newspaper.",
        ]
    )


KINDS: dict[str, tuple[Kind, int]] = {  # with the share of each, in hundredths
    "translation": (_translation, 7),
    "summarization": (_summarization, 8),
    "rag": (_rag, 9),
    "qa": (_qa, 9),
    "math_reasoning": (_math_reasoning, 8),
    "math": (_math, 7),
    "writing": (_writing, 9),
    "roleplay": (_roleplay, 7),
    "reasoning": (_reasoning, 7),
    "coding": (_coding, 9),
    "extraction": (_extraction, 7),
    "stem": (_stem, 7),
    "humanities": (_humanities, 6),
}


def build(count: int, seed: int, free: Passages, runs: set[tuple[str, ...]]) -> tuple[list[tuple[str, str]], int]:
    """`count` different (kind, prompt) pairs, and how many were dropped because they overlap a held-out prompt."""
    luck = random.Random(seed)
    names, shares = list(KINDS), [share for _, share in KINDS.values()]
    seen: set[str] = set()
    found: list[tuple[str, str]] = []
    dropped = 0
    while len(found) < count:
        kind = luck.choices(names, shares)[0]
        prompt = KINDS[kind][0](luck, free)
        if overlaps(prompt, runs):
            dropped += 1
        elif prompt not in seen:
            seen.add(prompt)
            found.append((kind, prompt))
    return found, dropped
