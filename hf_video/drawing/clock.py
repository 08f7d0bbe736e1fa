"""Times in a video as people write them."""


def clock(seconds: float, digits: int = 0) -> str:
    """Hours, minutes and seconds, such as 0:02:07 or 1:00:03.25.

    Args:
        seconds: 0 or more.
        digits: digits after the point of the seconds; without them, the seconds are cut, as on a clock.
    """
    ticks = round(seconds * 10**digits) if digits else int(seconds)
    whole, rest = divmod(ticks, 10**digits)
    minutes, seconds = divmod(whole, 60)
    fraction = f".{rest:0{digits}d}" if digits else ""
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}{fraction}"
