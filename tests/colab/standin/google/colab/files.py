"""Files go nowhere: there is no browser."""


def download(filename: str) -> None:
    pass


def upload() -> dict[str, bytes]:
    return {}
