"""What happens around an update, each a Lightning callback that can be used without the others."""
