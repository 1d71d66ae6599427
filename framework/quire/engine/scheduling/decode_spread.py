"""Spread of the decodes over the steps of a pipeline: how many of them one step may take.

A decode is in one step at a time, until the last stage has sampled its token. If one step took all
decodes, it would be alone in the pipeline, and every stage but one would be idle. Therefore any
`num_stages` consecutive steps have quotas that add up to the number of decodes:

    step          0  1  2  3  4  5  6  7        9 decodes, 4 stages
    decodes       3  2  2  2  3  2  2  2

Decodes over the quota wait for the next step, so steps become even again after arrivals and
finishes. Those that waited longest go first. None waits for a whole turn of the pipeline, unless
others are aborted meanwhile: the quotas of a turn have room for all, and no decode is in two of its
steps.
"""


def decode_quota(num_decodes: int, num_stages: int, plan_id: int) -> int:
    """Return the maximum number of decodes in a step; at least one, so that no decode is stuck.

    Args:
        num_decodes: Number of requests that decode, with those whose last token is in flight.
        num_stages: Number of stages, and of steps in flight.
        plan_id: Id of the step; consecutive steps have consecutive ids.
    """
    return max(1, -(-(num_decodes - plan_id % num_stages) // num_stages))
