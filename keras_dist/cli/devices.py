"""`keras-dist devices`: the devices of this machine, and the meshes that they can form."""

from __future__ import annotations

from typing import Annotated

import typer

from keras_dist.cli.arguments import AsJson, show


def devices(
    fake: Annotated[int | None, typer.Option(min=1, metavar="N", help="of so many fake CPU devices")] = None,
    json: AsJson = False,
) -> int:
    """List devices, and the meshes of all of them.

    It also tells which settings make fake ones.
    """
    from keras_dist.distribution.device_report import report_devices
    from keras_dist.distribution.devices import use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    show(report_devices(), json)
    return 0
