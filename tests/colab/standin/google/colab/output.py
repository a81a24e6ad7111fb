"""What is shown under a cell."""


def clear() -> None:
    pass


def enable_custom_widget_manager() -> None:
    pass


def register_callback(name: str, callback: object) -> None:
    pass
