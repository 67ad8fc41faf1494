def subnets(address_range: str, count: int) -> list[str]:
    return [subnet(address_range, index) for index in range(count)]


def subnet(address_range: str, index: int) -> str:
    if index > 255:
        raise ValueError(f"subnet {index} is not in {address_range}")
    return address_range.replace("0.0/8", f"{index}.0/24")
