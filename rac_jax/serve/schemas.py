"""The JSON of requests and answers, as the OpenAPI page describes it. Answers are as `predict --json` prints them."""

from pydantic import BaseModel, ConfigDict, Field


class Schema(BaseModel):
    """May have more fields than these."""

    model_config = ConfigDict(extra="allow")


class Error(BaseModel):
    error: str


class Vote(Schema):
    label: str
    probability: float


class Found(Schema):
    """A row of the memory near an image."""

    label: str | None
    text: str
    similarity: float
    source: str
    image: str
    row: int


class Neighbour(Found):
    supports: bool  # it has the label of the answer


class Answer(Schema):
    """What the run says about an image: the fused answer, each voice's, and the neighbours."""

    image: str | None = None  # the name of the file, if it has one
    label: str
    probability: float
    voices: dict[str, Vote]
    labels: list[str] | None = None  # with --coverage: a set that holds the true label this often
    familiarity: float | None = Field(
        default=None, description="The share of held-out images whose nearest rows are no nearer than this image's."
    )
    neighbours: list[Neighbour] | None = None
    keys: str = Field(description="Those of /api/run when this was answered: what the numbers of rows belong to.")
    version: int = Field(description="Of the memory when this was answered; 0 without a memory.")


class Unusable(Schema):
    """In place of an answer, for a file among several that is not a usable image."""

    image: str
    error: str


class Row(Schema):
    row: int
    label: str | None
    text: str
    source: str
    image: str


class Source(Schema):
    name: str
    state: str
    rows: int
    origin: str
    added: str


class ClassRows(Schema):
    name: str
    rows: int  # in the enabled sources
    trained: bool
    examples: list[int]  # some of its rows


class Example(Schema):
    number: int
    label: str


class Examples(Schema):
    """Images to try: of a split of the run's data, if they are on this machine, or else rows of the memory."""

    split: str
    images: int
    some: list[Example]


class Health(Schema):
    status: str
    rows: int
    version: int
    waiting: int


class Description(Schema):
    """What is served."""

    run: str
    step: int
    voices: list[str]
    classes: int
    rows: int
    memory: bool
    editable: bool
    coverage: float | None
    calibrated: bool | None = Field(
        description="Whether the sets of labels were calibrated with the memory as it is now; null without sets."
    )
    keys: str = Field(description="Changes when row numbers do, and with every start of the server.")
    version: int = Field(description="Of the memory: goes up with every edit; 0 without a memory.")
    most_bytes: int
