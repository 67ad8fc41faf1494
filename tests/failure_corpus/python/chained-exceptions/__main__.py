import pulumi


class SettingsError(Exception):
    pass


def load(file: str) -> str:
    try:
        with open(file) as settings:
            return settings.read()
    except OSError as error:
        raise SettingsError(f"cannot load the settings of {pulumi.get_stack()}") from error


pulumi.export("settings", load("settings/dev.ini"))
