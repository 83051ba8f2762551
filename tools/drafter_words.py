# ruff: noqa: E501  (lists are as wide as they are)
"""Word lists for the training prompts: names, places, subjects, tasks. Written for this project."""

from __future__ import annotations


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n") if line.strip()]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.replace("\n", " ").split(",") if item.strip()]


NAMES = _items("""
Anna, Ben, Carla, David, Ella, Felix, Grace, Henry, Isabel, Jack, Karen, Liam, Maria, Noah, Olivia, Paul, Rosa, Sam,
Tina, Victor, Wendy, Yusuf, Zoe, Amir, Bianca, Carlos, Diana, Ethan, Fatima, George, Hannah, Ivan, Julia, Kevin, Laura,
Mark, Nina, Oscar, Priya, Robert, Sarah, Tom, Uma, Vera, William, Emily, James, Lucy, Peter, Kate, Mia, Leo, Ruby, Omar
""")

PLACES = _items("""
Paris, Tokyo, Rome, Cairo, Lisbon, Vienna, Kyoto, Istanbul, Mexico City, Buenos Aires, Nairobi, Sydney, Vancouver,
Edinburgh, Prague, Athens, Amsterdam, Barcelona, Marrakesh, Mumbai, Bangkok, Seoul, Oslo, Reykjavik, Dublin, Chicago,
New Orleans, Boston, San Francisco, the Grand Canyon, the Scottish Highlands, the Amazon rainforest, the Swiss Alps,
the Sahara desert, a small fishing village, a mountain town, an old harbor, a quiet suburb, a busy market, a lighthouse,
New Zealand, Iceland, Sicily, Crete, Patagonia, Bali, Nepal, Norway, Cape Town, Havana
""")

COUNTRIES = _items("""
France, Germany, Italy, Spain, Portugal, Brazil, Argentina, Canada, Mexico, Japan, India, Egypt, Kenya, Nigeria, Turkey,
Greece, Poland, Sweden, Norway, Finland, Denmark, Ireland, Australia, New Zealand, South Korea, Vietnam, Thailand, Chile,
Peru, Colombia, Morocco, South Africa, Austria, Switzerland, Belgium, the Netherlands, Hungary, Indonesia, Iran, Pakistan
""")

PROFESSIONS = _items("""
nurse, carpenter, chef, farmer, pilot, librarian, plumber, astronomer, historian, journalist, gardener, mechanic,
software engineer, lawyer, dentist, photographer, architect, biologist, music teacher, baker, tailor, firefighter,
veterinarian, translator, fitness coach, travel agent, psychologist, economist, chemist, fisherman, electrician,
movie critic, stand-up comedian, career counselor, financial adviser, real estate agent, interior designer, poet,
sailor, museum guide, machine learning engineer, physics professor, statistician, accountant, event planner, barista
""")

THINGS = _items("""
an old clock, a lost dog, a broken bicycle, the sea, a garden, a cup of coffee, a red umbrella, a train ticket,
a secret door, a wooden boat, a library card, the moon, a violin, a winter coat, a birthday cake, a new phone,
a letter from home, a rainy day, a family recipe, a robot, a solar panel, a city park, a school trip, a camping tent,
a chess game, a pair of running shoes, a houseplant, a museum visit, a job interview, a late delivery, a noisy neighbor,
a team meeting, a missed deadline, a vegetable garden, a sunrise, a forest path, a river, a paper map, a painting,
a smart watch, a backpack, an electric car, a coffee machine, a bookshelf, a mirror, a bridge, a storm, a candle
""")

GOODS = _items("""
apples, oranges, pencils, books, marbles, stickers, cookies, tickets, shirts, chairs, lamps, flowers, eggs, candles,
cupcakes, notebooks, toys, bottles, stamps, cards, balloons, mugs, hats, shoes, bricks, tomatoes, peaches, seashells,
buttons, spoons, pillows, puzzles, bananas, crayons, melons, blankets, keys, coins, plates, kites
""")

LANGUAGES = _items("Python, Python, Python, JavaScript, Java, C++, Go, Rust, SQL, TypeScript, C, Bash")

OPENINGS = _lines("""
The letter arrived ten years too late.
Nobody in the village remembered the name of the river.
When the lights went out, everyone started to laugh.
She had never seen the ocean before that morning.
The clock in the tower struck thirteen.
He opened the box and found only a map.
The last train left without its driver.
It was the quietest winter that anyone could remember.
On the first day of school, the new teacher did not say a word.
There was a door in the garden that had not been there before.
My grandmother kept one rule above all others.
The robot woke up and asked for breakfast.
I guess we could meet some time next week if you are free.
The package was heavier than it looked.
Two strangers shared a bench and one umbrella.
The museum closed at six, but the paintings did not sleep.
""")

SCIENCE = _items("""
photosynthesis, gravity, evaporation, the water cycle, electricity, magnetism, DNA replication, natural selection,
plate tectonics, the greenhouse effect, nuclear fusion, nuclear fission, black holes, the big bang theory, cell division,
the human heart, the immune system, vaccines, antibiotics, the nervous system, osmosis, enzymes, chemical bonds,
acids and bases, oxidation, the periodic table, thermodynamics, entropy, sound waves, light refraction, lasers,
semiconductors, transistors, machine learning, neural networks, encryption, the internet, GPS, batteries, solar power,
wind turbines, climate change, biodiversity, ecosystems, volcanoes, earthquakes, tides, the solar system, comets,
relativity, quantum mechanics, radioactivity, genetics, stem cells, bacteria, viruses, the carbon cycle, hydraulics,
bridges and load, friction, momentum, Newton's laws of motion, probability, statistics, linear regression, calculus,
matrix multiplication, prime numbers, sorting algorithms, operating systems, databases, cloud computing, robotics,
3D printing, water purification, recycling, the digestive system, sleep, memory, allergies, protein folding,
superconductors, rocket engines, telescopes, microscopes, ocean currents, soil erosion, fermentation, pollination
""")

HUMANITIES = _items("""
the industrial revolution, the French revolution, the fall of the Roman empire, the cold war, the Renaissance,
the Enlightenment, colonialism, democracy, free speech, human rights, utilitarianism, stoicism, existentialism,
the social contract, inflation, unemployment, international trade, taxation, minimum wage, universal basic income,
globalization, migration, urbanization, public education, gender equality, religious freedom, art history,
impressionism, modern architecture, classical music, jazz, Greek tragedy, Shakespeare's plays, the novel, poetry,
folk tales, mythology, propaganda, journalism, social media, advertising, censorship, copyright, the death penalty,
animal rights, environmental ethics, artificial intelligence in art, remote work, online learning, consumer culture,
the civil rights movement, the women's suffrage movement, the silk road, the printing press, the Black Death,
the First World War, the Second World War, the space race, the gold rush, feudalism, capitalism, socialism,
constitutional law, antitrust policy, monetary policy, supply and demand, game theory, cultural heritage, museums,
film history, photography, theater, dance, philosophy of science, logic, rhetoric, leadership, teamwork, happiness
""")

CODE_TASKS = _lines("""
reverse a string
reverse a linked list
check whether a word is a palindrome
find the largest number in a list
compute the factorial of a number
print the Fibonacci sequence
sort a list of numbers with bubble sort
sort a list with merge sort
sort a list with quicksort
search a sorted array with binary search
count the vowels in a string
count how often each word occurs in a file
remove duplicates from a list
merge two dictionaries
find the common elements of two arrays
compute the greatest common divisor
check whether a number is prime
list all prime numbers below n with a sieve
convert Celsius to Fahrenheit
read a CSV file and print the average of a column
write a list of records to a JSON file
download a web page and print its title
parse a date from a string
validate an email address with a regular expression
implement a stack with push and pop
implement a queue with two stacks
implement a binary search tree
traverse a binary tree in order
find the depth of a binary tree
find the lowest common ancestor in a tree
detect a cycle in a linked list
find the shortest path in a graph with breadth-first search
implement Dijkstra's algorithm
compute the edit distance of two strings
find the longest common subsequence of two strings
find the longest palindromic substring
generate all permutations of a list
solve the knapsack problem with dynamic programming
count the ways to climb n stairs
rotate a matrix by ninety degrees
multiply two matrices
transpose a matrix
convert a number to binary
convert Roman numerals to integers
check whether parentheses are balanced
implement a least-recently-used cache
make a simple calculator
make a to-do list in the terminal
make a guessing game with random numbers
make a countdown timer
make a web server that returns JSON
make a web page with a button that changes its color
make a form that checks its input
draw a bar chart of monthly sales
plot a sine wave
simulate rolling two dice
shuffle a deck of cards
encrypt a text with the Caesar cipher
compute a hash of a file
list all files in a folder and their sizes
rename many files at once
connect to a SQLite database and run a query
select the ten best customers by revenue
join two tables and group by month
train a linear regression model
train a decision tree on a small data set
implement k-means clustering
compute the mean, median and mode of a list
find the missing number in a sequence
find two numbers in a list that sum to a target
find the maximum subarray sum
move all zeros to the end of an array
find the kth largest element
flatten a nested list
group anagrams together
count the islands in a grid
solve the N-Queens problem
play tic-tac-toe
implement the game of life
write unit tests for a bank account class
define a class for a rectangle with area and perimeter
handle errors when opening a file
run tasks in parallel with threads
limit the rate of requests
log messages to a file
schedule a job every hour
build a command-line tool with arguments
split a text into sentences
remove punctuation from a text
convert a string to title case
check the strength of a password
generate a random password
compute compound interest
convert currencies with a table of rates
""")

FACT_QUESTIONS = _lines("""
What is the capital of {country}?
What language do they speak in {country}?
What is the currency of {country}?
Who was the first president of {country}?
When did {country} become independent?
What is the national dish of {country}?
How many people live in {country}?
Where is {country} on the map?
What is the highest mountain in {country}?
What is the longest river in {country}?
Who won the world cup in {country}?
When did {country} join the United Nations?
What is {place} famous for?
How far is it from {place} to {country}?
What is the best time of the year to visit {place}?
Where did the name of {place} come from?
What county is {place} in?
Who founded {place}?
Who discovered {science}?
Who invented {science}?
When was {science} discovered?
What is the meaning of {science}?
Where does {science} take place?
What are the three types of {science}?
How many kinds of {science} are there?
What is another name for {science}?
When did {topic} start and end?
Who wrote the first book about {topic}?
What does {topic} mean?
Where did {topic} begin?
Who is the most famous person in {topic}?
Why is {topic} called that?
Who sings the song about {thing}?
Who plays {name} in the movie about {thing}?
What happens to {name} at the end of the story of {thing}?
When does the next season of the show about {name} come out?
Who wrote the book about {name} and {thing}?
How many episodes are there in the series about a {job}?
What does a {job} do?
How much does a {job} earn?
Who is the voice of {name} in the cartoon?
Where was the movie about a {job} in {place} filmed?
What year did the film about {thing} come out?
What is the origin of the name {name}?
How long does it take to become a {job}?
Which team won the cup in {place} last year?
What channel is the game in {place} on?
Who is the king of {country}?
Where is the world's oldest {job} school?
What is the difference between {science} and {topic}?
""")

GERMAN = {
    "subject": _lines("""
        Die Regierung
        Der Minister
        Die Polizei
        Der Bürgermeister
        Die Mannschaft
        Ein Sprecher des Unternehmens
        Der junge Mann
        Die Lehrerin
        Der Präsident
        Die Firma
        Der Trainer
        Die meisten Menschen
        Viele Kinder
        Das neue Gesetz
        Die Studie
        Der Verein
        Die Ärztin
        Unser Nachbar
        Die Stadt
        Der Bericht
        Die Behörden
        Der Künstler
        Eine Gruppe von Schülern
        Der Bundesrat
        Die Feuerwehr
        Das Krankenhaus
        Der Markt
        Die Familie
        Ein Reporter
        Der Zug
    """),
    "verb": _lines("""
        hat
        will
        kann
        soll
        musste
        wollte
        konnte
        wird
        hat nach eigenen Angaben
        darf
        möchte
        hat am Montag
        wird im nächsten Jahr
        soll noch in dieser Woche
    """),
    "rest": _lines("""
        die neue Brücke über den Fluss
        den Preis für die Fahrkarten
        mehr Geld für die Schulen
        das Spiel gegen Hamburg
        die Zahl der Unfälle
        einen Vertrag mit der Gewerkschaft
        die Ursache des Brandes
        den alten Bahnhof in der Innenstadt
        das Problem mit dem Wasser
        eine Lösung für die Krise
        die Gäste aus dem Ausland
        den Weg nach Hause
        die Wohnungen in Berlin
        das Konzert im Stadtpark
        die Kosten der Reise
        den Streit zwischen den Ländern
        die Arbeit der Forscher
        die Sicherheit auf den Straßen
        den Sieg in der letzten Minute
        das Museum für moderne Kunst
        die Rechte der Arbeitnehmer
        den Schutz der Umwelt
        die Fragen der Journalisten
        das Essen in der Kantine
    """),
    "end": _lines("""
        verbessern
        bezahlen
        geplant
        verhindern
        erklären
        besuchen
        verkauft
        gefunden
        nicht vergessen
        bald eröffnen
        vor dem Winter abschließen
        ohne Erfolg gesucht
        deutlich erhöhen
        endlich gelöst
        nach Angaben der Zeitung untersuchen
        im Sommer wieder anbieten
        trotz der Kritik verteidigt
        mit großer Freude gesehen
    """),
}
