"""`keras-dist devices`: the devices of this machine, and meshes of them."""

from __future__ import annotations

from keras_dist.cli.arguments import AsJson, Fake, show


def devices(fake: Fake = None, json: AsJson = False) -> int:
    """List devices, their meshes, and settings for fake devices."""
    from keras_dist.distribution.device_report import report_devices
    from keras_dist.distribution.devices import use_cpu_devices

    if fake is not None:
        use_cpu_devices(fake)
    show(report_devices(), json)
    return 0
