"""`keras-dist devices`: the devices of this machine, and the meshes that they can form."""

from __future__ import annotations

from keras_dist.cli.arguments import AsJson, Fake, show


def devices(fake: Fake = None, json: AsJson = False) -> int:
    """List devices, and the meshes of all of them.

    It also tells which settings make fake ones.
    """
    from keras_dist.distribution.device_report import report_devices
    from keras_dist.distribution.devices import use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    show(report_devices(), json)
    return 0
