"""What can be wrong with what a user gives as load."""


class BadData(Exception):
    """No request can be made of the data that the user gave; the message says why."""
