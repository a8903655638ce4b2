"""What EdgeLink knows of the frameworks that it starts: RLinf, verl, OpenRLHF, LeRobot."""
