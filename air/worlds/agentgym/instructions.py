"""The instructions that the agent gets in each environment of AgentGym: the environment's rules and the
available actions."""

from __future__ import annotations

TEXTCRAFT = """\
You craft items as in Minecraft. The first message lists recipes and names the item to craft.

Actions, one per turn:
- `inventory` shows what you carry.
- `get AMOUNT ITEM` fetches a raw item, one that no recipe makes. Example: get 2 oak log
- `craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM` follows one of the listed recipes, with its amounts.
  Example: craft 4 oak planks using 1 oak log

Not every listed recipe is needed. Where a recipe asks for a kind of item, such as planks, name an item \
of this kind that you carry, such as oak planks. The task is done when you have crafted its item."""

BABYAI = """\
You are in a house of rooms, on a grid, and see only what lies before you. The first message names your goal.

Actions, one per turn:
- `turn left`, `turn right`, `move forward`
- `go to OBJECT NUMBER`, such as: go to red ball 1
- `pickup OBJECT NUMBER`, such as: pickup green key 1
- `drop` puts down what you carry, in front of you.
- `go through DOOR NUMBER` for an open door, such as: go through blue open door 1
- `toggle and go through DOOR NUMBER` for a closed door, or for a locked one if you carry its key
- `toggle` opens or closes the door right in front of you.
- `check available actions` lists the actions that are possible now.

Every observation ends with the list of possible actions: choose from it, and write it exactly so. The fewer \
steps you need, the higher is your score."""

SCIWORLD = """\
You are in a small text world with several rooms, and carry out a science experiment. The first message \
describes the task.

Actions, one per turn (OBJ is the name of an object):
- look around; look at OBJ; look in OBJ; examine OBJ; read OBJ; inventory; task
- go to ROOM; open OBJ; close OBJ; activate OBJ; deactivate OBJ
- pick up OBJ; put down OBJ; move OBJ to OBJ; pour OBJ into OBJ; dunk OBJ into OBJ; mix OBJ
- use OBJ; use OBJ on OBJ; connect OBJ to OBJ; disconnect OBJ; eat OBJ; flush OBJ
- focus on OBJ tells the world that this is the object which the task asks for.
- wait lets ten moments pass, wait1 one.
- If the world lists numbered meanings of your last action, answer with the number.

Focus only on what the task names: a wrong focus fails the task at once. Doors must be open before you walk \
through. The score grows with each part of the task that you complete."""

ALFWORLD = """\
You are in a household and have a task, which the first message states. You find objects, carry them, and \
change them with the furniture and the devices of the house.

Actions, one per turn, are those that each observation lists as available. Write one of them exactly as it \
stands there. Typical ones: go to desk 1; open drawer 2; take mug 1 from desk 1; use desklamp 1; heat mug 1 \
with microwave 1; look; inventory.

You carry at most one object. The answer "Nothing happens" means that the action was not possible."""

WEBSHOP = """\
You buy a product in a web shop. The first page states what is wanted: properties, options and a price limit.

Actions, one per turn:
- `search[WORDS]` on a page with a search bar, such as: search[red cotton shirt long sleeve]
- `click[TEXT]` on a button, a product's code or an option of the page, such as: click[Next >] or click[xl]

Open a product, choose the options that are asked for, and buy it by click[Buy Now], which ends the task. \
Your score says how well the product and its options match. An action that the page does not offer does \
nothing."""

MAZE = """\
You walk through a maze. Every observation tells the goal's position, your position, and where walls are \
next to you. Positions are ROW, COLUMN; rows are counted downwards.

Actions, one per turn: `move up`, `move down`, `move left`, `move right`. A move into a wall changes \
nothing. Reach the goal in as few moves as you can."""

WORDLE = """\
You guess a hidden English word of five letters, with six attempts.

Write a guess as its letters with spaces between them, such as: s h i r e

The answer has one sign for each letter: g, the letter is right; y, the letter is in the word but elsewhere; \
b, the letter is not in the word. A guess that is no known word of five letters is called invalid."""

SQLGYM = """\
You answer a question about an SQLite database. The first message describes the tables and asks the question.

Your action is one SQL query, such as: SELECT name FROM city WHERE area > 100
It must begin with SELECT or WITH and may not change the data. You see the beginning of its result. The task \
is done when a query's result is the answer to the question."""

SEARCHQA = """\
You answer a question, with the help of a search engine.

Actions, one per turn:
- `<search>WORDS</search>` shows the passages that fit best.
- `<answer>ANSWER</answer>` gives your answer, as short as possible: a name, a number, a date.

Search until you are sure, then answer."""

WEBARENA = """\
You carry out a task in a web browser. Every observation shows the page as a tree of elements, each with a \
number, and the task (objective).

Actions, one per turn:
- click [ID]; hover [ID]; type [ID] [TEXT] [1], where 0 instead of 1 does not press Enter after the text
- press [KEYS]; scroll [down]; scroll [up]
- new_tab; tab_focus [NUMBER]; close_tab; goto [URL]; go_back; go_forward
- stop [ANSWER] ends the task; the answer is empty if none was asked for, and N/A if it cannot be done."""

_CALLS = """\
You reach a goal with the help of tools. The first message states the goal.

Your action is the call of one tool, in one line: TOOL with Action Input: JSON
Example: {example}

The tools, with the names of their inputs:
{tools}
- finish(answer): ends the task with your answer

Look identifiers up by the tools; do not invent any. Call finish when you are done."""


def tools(explained: str) -> str:
    """Returns the instructions for an agent in an environment with tools: fixed sentences that say how to
    call a tool, with the text `explained` in them. The first line of `explained` is an example of a call, and
    the further lines describe the tools."""
    example, _, lines = explained.partition("\n")
    return _CALLS.format(example=example, tools=lines)


WEATHER = """\
get_elevation with Action Input: {"latitude": 31.2, "longitude": 121.5}
- get_user_current_date(), get_user_current_location()
- get_latitude_longitude(name): the coordinates of a place; always use it to find them
- get_historical_temp, get_historical_rain, get_historical_snow, get_historical_air_quality_index, \
get_temp_forecast, get_rain_forecast, get_snow_forecast (latitude, longitude, start_date, end_date); dates \
are YYYY-MM-DD
- get_current_temp, get_current_rain, get_current_snow, get_current_air_quality_index (latitude, longitude, \
current_date)
- get_elevation(latitude, longitude)
- get_distance(latitude1, longitude1, latitude2, longitude2): in kilometres
- get_air_quality_level(air_quality_index): good, fair, moderate, poor and so on
- check_valid_actions(): the names of all tools"""

MOVIE = """\
get_search_movie with Action Input: {"movie_name": "Scream VI"}
- get_search_movie(movie_name), get_search_person(person_name): find identifiers
- get_movie_details, get_movie_production_companies, get_movie_production_countries, get_movie_cast, \
get_movie_crew, get_movie_keywords, get_movie_alternative_titles, get_movie_translation (movie_id)
- get_person_details, get_person_cast, get_person_crew, get_person_external_ids (person_id)
- check_valid_actions(): the names of all tools"""

TODO = """\
get_tasks with Action Input: {"project_id": "12345"}
- get_user_current_date(), get_user_current_location()
- get_projects(): all projects, with their identifiers
- update_project(project_id, is_favorite): is_favorite is "True" or "False"
- get_tasks(project_id): the tasks of a project, with their identifiers
- get_task_description, get_task_duration, complete_task, delete_task (task_id)
- update_task(task_id, due_date)
- check_valid_actions(): the names of all tools

If the goal is to do something rather than to find something out, the answer is "done"."""

ACADEMIA = """\
paperNodeCheck with Action Input: {"node": "Attention Is All You Need"}
- loadPaperNet(), loadAuthorNet(): load a graph, which must be done before the other tools
- neighbourCheck(graph, node): the neighbours of a node; graph is "PaperNet" (papers that cite each other) \
or "AuthorNet" (authors who wrote together)
- paperNodeCheck(node), authorNodeCheck(node): what is known of a paper or of an author
- authorEdgeCheck(node1, node2): the papers that two authors wrote together"""

SHEET = """\
open_sheet with Action Input: {"name": "Sheet1"}
- open_sheet(name), del_sheet(name): first open the sheet that the goal names
- get_all_values(), get_range_values(start_position, end_position), get_cell_value(position), \
get_note(position): read cells; positions are such as "B2"
- get_value_by_formula(start_position, end_position, operator) or (position_list, operator): operator is \
SUM, AVERAGE, COUNT, MAX, MIN, MINUS or PRODUCT
- filter_cells(query, in_row, in_column): finds the cells with a text
- update_cell(position, value), update_range(start_position, end_position, values_list), \
update_note(position, content)
- update_cell_by_formula(start_position, end_position, operator, result_position) or (position_list, \
operator, result_position)
- insert_rows(values_list, row_idx), insert_cols(values_list, col_idx): values_list is a list of lists
- delete_batch_data(dimension, index_list): dimension is "row" or "col"
- sort_sheet_by_col(col_num, order): order is "asc" or "des"
- merge_cells(start_position, end_position), freeze_data(dimension, num), get_A1_annotation(row, col)"""
