"""Sweeps that run as jobs of a Ray cluster: submitted, watched, stopped."""

NO_SERVER = (
    "cluster.jobs: no job server of Ray answers at {address}; open the tunnel "
    "(capsweep cluster show NAME prints its command), or start the head with ray[default] and its "
    "dashboard"
)
